"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from blobnet.blob import BlobLayout, Shape
from blobnet.geometry import Pair
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Candidate, Implementation
from blobnet.implementations.blocking import READ_COST, VectorTile, lanes_for, reads, splits_for, tiles, vector_tiles
from blobnet.implementations.operation import InputPhases, Operation, Phase
from blobnet.implementations.sums import split_sum
from blobnet.kernel_call import Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21
#: What it costs to copy a value when the input is split into phases, and to store one where vectors are not whole, in
#: multiply-adds.
COPY_COST, STORE_COST = 40, 50
#: Most vectors of sums where several taps read phases: with 24, Intel's compiler makes loops of 0.6 of the speed.
SPLIT_ACCUMULATORS = 20
#: How much longer the gradient of the weights takes where no other tap reads what a column has brought near.
ONE_TAP_COST = 1.15
#: What it costs to add up the lanes of a weight's sum and to store it, in multiply-adds.
WEIGHT_COST = 200


@dataclass(frozen=True)
class Source:
    """What an operation reads at stride 1: its source, or a copy of the input that is split into phases.

    Attributes:
        operation: whose.
        layout: of its planes.
        phases: of the input; None: the source itself.
    """

    operation: Operation
    layout: BlobLayout
    phases: InputPhases | None = None

    @classmethod
    def of(cls, operation: Operation) -> Source:
        """The one of an operation."""
        if operation.direction == BACKWARD_DATA or operation.strides == (1, 1):
            return cls(operation, operation.source.layout)
        phases = operation.input_phases
        shape = Shape(operation.input.shape.units * phases.planes, phases.height, phases.width)
        return cls(operation, BlobLayout.padded(shape), phases)

    @property
    def elements(self) -> int:
        """Values of one sample's planes."""
        return self.layout.unit_count * self.layout.unit_memory_elements

    @property
    def cost(self) -> float:
        """Of making the copy."""
        copied = self.layout.memory_elements if self.phases else 0
        return COPY_COST * copied * self.operation.batch_size / self.operation.cores

    @property
    def macros(self) -> dict[str, Macro]:
        """What a kernel that reads this must know. Padding is part of the phases."""
        unsplit: dict[str, Macro] = {"PHASES_Y": 1, "PHASES_X": 1}
        return {**self.phases.macros, "PAD_TOP": 0, "PAD_LEFT": 0} if self.phases else unsplit

    @property
    def blob(self) -> Blob:
        """Where it is."""
        if not self.phases:
            return self.operation.source
        name = f"phases {self.operation.direction.removesuffix('s')}"
        memory = self.operation.memory(name, per_sample=self.layout.memory_elements)
        return Blob(memory.storage, self.layout, is_memory=True)

    @property
    def calls(self) -> list[KernelCall]:
        """The launch that makes the copy, if there is one."""
        if not self.phases:
            return []
        kernel = "convolution/split_phases"
        most = self.operation.tuning.of(kernel)["MAXIMUM_LANES"]
        call = self.operation.call(
            kernel,
            GlobalSize(1, 1, self.layout.unit_count),
            macros={"LANES": 1 << (min(self.phases.width, most).bit_length() - 1)},
            facts=self.phases.macros,
            blobs={"PHASES": self.blob},
            label=f"{self.operation.label}: split",
        )
        return [call]


class Direct(Implementation):
    """Tiles of sums in registers, straight from the blobs."""

    lanes = False
    forward = "convolution/forward_flat"
    backward_data = "convolution/backward_data"
    backward_weights = "convolution/backward_weight"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        source = Source.of(operation)
        if operation.direction == BACKWARD_WEIGHTS:
            yield from self._weights(operation, source)
            return
        # A launch for each phase; its tiles are a candidate each if there is one phase, else each phase's cheapest.
        phases = operation.phases
        choices = [self._tiles(operation, source, phase) for phase in phases]
        if len(phases) != 1:
            choices = [(of_phase[:1], flat, more) for of_phase, flat, more in choices]
        stores = sum(more for *_, more in choices)
        for chosen in zip(*(of_phase for of_phase, *_ in choices), strict=True) if phases else [()]:
            parts = list(zip(phases, chosen, (flat for _, flat, _ in choices), strict=True))
            sums = sum(tile.cost * (phase.taps * operation.depth) for phase, tile, _ in parts)
            read = sum(min(_tile_reads(tile, source, phase.taps)) for phase, tile, _ in parts)
            cost = _cost(operation, sums + READ_COST * read) + source.cost + stores
            way = self.way(chosen[0] if len(chosen) == 1 else "")
            yield Candidate(way, cost, partial(self._calls, operation, source, parts))

    def _tiles(self, operation: Operation, source: Source, phase: Phase) -> tuple[list[VectorTile], bool, float]:
        """Tiles for a phase; whether they run over flat planes, and what stores cost besides.

        Rows of their own, if they take no more vectors and the result has another pitch: more of these are stored as
        they are.
        """
        tunables = operation.tuning.of(self.kernel(operation))
        if source.phases and operation.taps > 1:
            tunables["MAXIMUM_ACCUMULATORS"] = min(tunables["MAXIMUM_ACCUMULATORS"], SPLIT_ACCUMULATORS)
        pitch = source.layout.unit_memory_width
        flat = vector_tiles(tunables, operation.units, (phase.height - 1) * pitch + phase.width)
        result = operation.result
        if operation.direction == BACKWARD_DATA or pitch == result.layout.unit_memory_width:
            return flat, True, 0
        rows = vector_tiles(tunables, operation.units, phase.width, runs=phase.height)
        stores = STORE_COST * result.shape.elements * operation.batch_size / operation.cores
        return (flat, True, stores) if flat[0].cost < rows[0].cost else (rows, False, stores)

    def _calls(
        self, operation: Operation, source: Source, parts: Sequence[tuple[Phase, VectorTile, bool]]
    ) -> list[KernelCall]:
        kernel, calls = self.kernel(operation), source.calls
        for phase, tile, flat in parts:
            unit_blocks = operation.groups * -(-operation.units // tile.units)
            size, order = _order(unit_blocks, tile.count, _tile_reads(tile, source, phase.taps))
            facts = {**phase.macros, **source.macros, "FLAT": int(flat)}
            blobs = {"OUTPUT_DELTA" if operation.direction == BACKWARD_DATA else "INPUT": source.blob}
            macros = {**tile.macros, **order}
            calls.append(operation.call(kernel, GlobalSize(*size), macros=macros, facts=facts, blobs=blobs))
        return calls

    def _weights(self, operation: Operation, source: Source) -> Iterator[Candidate]:
        """On flat planes at one pitch, else row by row; with a stride on those of the input's phases."""
        tunables = operation.tuning.of(self.backward_weights)
        limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
        most = tunables["MAXIMUM_LANES"]
        rows, run = _runs(source)
        # A vector that holds less than the most lanes takes as long.
        positions = rows * -(-run // lanes_for(run, most)) * most * (ONE_TAP_COST if operation.taps == 1 else 1)
        more = WEIGHT_COST * operation.weights / operation.cores + source.cost
        for cost, units, columns in tiles(operation.output_units, operation.columns, *limits):
            calls = partial(self._weight_calls, operation, source, units, columns)
            yield Candidate(self.way(f"{units}x{columns}"), _cost(operation, cost * positions) + more, calls)

    def _weight_calls(self, operation: Operation, source: Source, units: int, columns: int) -> list[KernelCall]:
        kernel = self.backward_weights
        tunables = operation.tuning.of(kernel)
        rows, run = _runs(source)
        column_blocks = -(-operation.columns // columns)
        unit_blocks = operation.groups * -(-operation.output_units // units)
        lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
        piece = min(run, -(-tunables["PIECE_POSITIONS"] // lanes) * lanes)
        layout = operation.output.layout
        both = layout.unit_count * layout.unit_memory_elements, source.elements
        elements = [operation.batch_size * count for count in both]
        splits = max(
            splits_for(unit_blocks * column_blocks, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"]),
            splits_for(1, -(-sum(elements) // SPLIT_ELEMENTS), tunables["MAXIMUM_SPLITS"]),
        )
        of_units, of_columns = (count // (operation.groups * splits) for count in elements)
        size, order = _order(unit_blocks, column_blocks, reads(of_units, unit_blocks, of_columns, column_blocks))
        partials, reductions = split_sum(operation, splits)
        call = operation.call(
            kernel,
            GlobalSize(*size, splits, per_sample=False),
            macros={
                "FLAT": int(rows == 1),
                "PIECE": piece if rows == 1 else run,
                "SPLITS": splits,
                "LANES": lanes,
                "BLOCK_COLUMNS": columns,
                "BLOCK_UNITS": units,
                **order,
            },
            facts=source.macros,
            blobs={"INPUT": source.blob},
            arrays={"PARTIALS": partials},
        )
        return [*source.calls, call, *reductions]


def _runs(source: Source) -> Pair:
    """How many runs of positions the gradient of the weights sums for a sample, and how long they are.

    Flat planes (one pitch) are one run, else each row is one.
    """
    delta = source.operation.output
    same_pitch = delta.layout.unit_memory_width == source.layout.unit_memory_width
    if same_pitch or delta.shape.height == 1:
        return 1, delta.shape.width + (delta.shape.height - 1) * delta.layout.unit_memory_width
    return delta.shape.height, delta.shape.width


def _cost(operation: Operation, multiply_adds: float) -> float:
    """The cost of a candidate that needs so many multiply-adds a sample and group."""
    return multiply_adds * operation.batch_size * operation.groups / operation.cores


def _order(unit_blocks: int, column_blocks: int, read: Pair) -> tuple[Pair, dict[str, Macro]]:
    """Width and height in the order of blocks that reads less (:func:`reads`), and the macro of kernels/.../order.h."""
    units_first = read[0] < read[1]
    size = (unit_blocks, column_blocks) if units_first else (column_blocks, unit_blocks)
    return size, {"UNITS_FIRST": int(units_first)}


def _tile_reads(tile: VectorTile, source: Source, taps: int) -> Pair:
    """:func:`reads` of a tile."""
    operation = source.operation
    weights = operation.input_units * operation.output_units * taps
    blocks = -(-operation.units // tile.units)
    return reads(weights, blocks, source.elements // operation.groups, tile.count)
