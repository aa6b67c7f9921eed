"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from blobnet.blob import BlobLayout, Shape
from blobnet.geometry import Pair
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.blocking import (
    READ_COST,
    Block,
    VectorTile,
    blocks,
    reads,
    rounded_up,
    splits_for,
    vector_tiles,
)
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.sums import split_sum
from blobnet.kernel_call import Blob, GlobalSize, KernelCall, power_of_two
from blobnet.kernel_source import Macro

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21
#: What it costs to copy a value when the input is split into phases, and to store one where vectors are not whole, in
#: multiply-adds.
COPY_COST, STORE_COST = 40, 50
#: Most vectors of sums where several taps read phases: with 24, Intel's compiler makes loops of 0.6 of the speed.
SPLIT_ACCUMULATORS = 20
#: What forward takes of what is counted where stores weigh most: its results go from registers straight to memory.
ONE_TAP_FORWARD_COST = 0.85
#: How much longer the gradient of the weights takes where no other tap reads what a column has brought near.
ONE_TAP_COST = 1.15
#: What it costs to add up the lanes of a weight's sum and to store it, in multiply-adds.
WEIGHT_COST = 200


class Source:
    """What an operation reads at stride 1: its source, or a copy of the input that is split into phases."""

    def __init__(self, operation: Operation) -> None:
        self.layout, self.phases = operation.source.layout, None
        #: What a kernel that reads this must know, and the cost of making the copy.
        self.macros, self.cost = {"PHASES_Y": 1, "PHASES_X": 1}, 0.0
        if operation.direction != BACKWARD_DATA and operation.strides != (1, 1):
            self.phases = phases = operation.input_phases
            self.layout = BlobLayout.padded(Shape(operation.input.shape.units * phases.units, *phases.sizes))
            # Padding is part of the phases.
            self.macros = {"PAD_TOP": 0, "PAD_LEFT": 0}
            self.cost = COPY_COST * self.layout.memory_elements * operation.batch_size / operation.cores
        #: From a row to the next, and values of one sample's planes.
        self.pitch = self.layout.unit_memory_width
        self.elements = self.layout.unit_count * self.layout.unit_memory_elements

    def copied(self, operation: Operation) -> tuple[Blob, list[KernelCall]]:
        """Where it is, and the launch that makes the copy, if there is one."""
        if not self.phases:
            return operation.source, []
        name, kernel = operation.direction.removesuffix("s"), "convolution/split_phases"
        memory = operation.memory(f"phases {name}", per_sample=self.layout.memory_elements)
        blob = Blob(memory.storage, self.layout, is_memory=True, type=operation.source.type)
        lanes = 1 << (min(self.phases.width, operation.tuning.of(kernel)["MAXIMUM_LANES"]).bit_length() - 1)
        size, label = GlobalSize(1, 1, self.layout.unit_count), f"{operation.label}: split"
        return blob, [operation.call(kernel, size, None, {}, label, LANES=lanes, PHASES=blob)]


@dataclass(frozen=True)
class Part:
    """What one launch makes: a phase, along flat planes of the source's pitch, or along rows of the result's own."""

    phase: Phase
    tile: VectorTile
    flat: bool

    def reads(self, operation: Operation, source: Source) -> Pair:
        """:func:`reads` of the tiles."""
        weights = operation.units * operation.depth * self.phase.taps
        unit_blocks = -(-operation.units // self.tile.units)
        return reads(weights, unit_blocks, source.elements // operation.groups, self.tile.count)


class Direct(Implementation):
    """Tiles of sums in registers, straight from the blobs."""

    lanes = False

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        kernel = super().kernel_of(direction).removesuffix("_direct")
        return "convolution/forward_flat" if direction == FORWARD else kernel

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        source = Source(operation)
        if operation.direction == BACKWARD_WEIGHTS:
            tunables = cls.tunables(operation)
            limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
            for block in blocks(operation.units, operation.columns, *limits):
                yield _Gradient(operation, block, source)
            return
        # A launch for each phase; its tiles are a candidate each if there is one phase, else each phase's cheapest.
        parts = [cls._parts(operation, source, phase) for phase in operation.phases]
        if len(parts) == 1:
            yield from (cls(operation, part.tile, source, part) for part in parts[0])
        else:
            yield cls(operation, "", source, *(of_phase[0] for of_phase in parts))

    @classmethod
    def _parts(cls, operation: Operation, source: Source, phase: Phase) -> list[Part]:
        """The ways to make a phase, the cheapest first.

        Along rows of their own, if they take no more vectors and the result has another pitch: more of these are stored
        as they are.
        """
        tunables, width, stride = cls.tunables(operation), phase.horizontal.size, operation.unit_stride
        if source.phases and operation.taps > 1:
            tunables["MAXIMUM_ACCUMULATORS"] = min(tunables["MAXIMUM_ACCUMULATORS"], SPLIT_ACCUMULATORS)
        run = (phase.vertical.size - 1) * source.pitch + width
        flat = vector_tiles(tunables, operation.units, run, stride=stride)
        if operation.direction == FORWARD and source.pitch != operation.result.layout.unit_memory_width:
            rows = vector_tiles(tunables, operation.units, width, runs=phase.vertical.size, stride=stride)
            if rows[0].cost <= flat[0].cost:
                return [Part(phase, tile, flat=False) for tile in rows]
        return [Part(phase, tile, flat=True) for tile in flat]

    def __init__(self, operation: Operation, tile: object, source: Source, *parts: Part) -> None:
        super().__init__(operation, tile)
        self.source, self.parts = source, parts

    def _cost(self, multiply_adds: float) -> float:
        """Of so many multiply-adds a sample and group, and the copy."""
        operation = self.operation
        return multiply_adds * operation.batch_size * operation.groups / operation.cores + self.source.cost

    @property
    def cost(self) -> float:
        operation, source, result = self.operation, self.source, self.operation.result
        sums = sum(part.tile.cost * (part.phase.taps * operation.depth) for part in self.parts)
        read = sum(min(part.reads(operation, source)) for part in self.parts)
        # What of the results is stored in other places than it is computed.
        moved = operation.direction == FORWARD and source.pitch != result.layout.unit_memory_width
        stores = STORE_COST * result.shape.elements * operation.batch_size / operation.cores if moved else 0
        cost = self._cost(sums + READ_COST * read) + stores
        return cost * ONE_TAP_FORWARD_COST if operation.direction == FORWARD and operation.taps == 1 else cost

    def calls(self) -> list[KernelCall]:
        operation, source = self.operation, self.source
        blob, calls = source.copied(operation)
        role = "OUTPUT_DELTA" if operation.direction == BACKWARD_DATA else "INPUT"
        for part in self.parts:
            unit_blocks = operation.groups * -(-operation.units // part.tile.units)
            read = part.reads(operation, source)
            # Where caches hold everything, each core makes a part of the positions if that spares it a part of a source
            # which is more than the result, and of which others have just written much.
            is_wide = operation.direction == FORWARD and operation.depth > operation.units
            size, order = _order(unit_blocks, part.tile.count, read, tied=is_wide)
            if operation.direction == FORWARD:
                # A work-item takes some time to begin, and what one stores side by side is stored sooner.
                items = self.tunables(operation)["TARGET_ITEMS"] * operation.cores
                order["BLOCKS_AT_ONCE"] = at_once = max(1, math.prod(size) * operation.batch_size // items)
                size = (-(-math.prod(size) // at_once), 1)
            facts = part.tile.macros | order | part.phase.macros | source.macros | {"FLAT": int(part.flat)}
            calls.append(operation.call(self.kernel, GlobalSize(*size), None, facts, **{role: blob}))
        return calls


class _Gradient(Direct):
    """Backward weights: on flat planes at one pitch, else row by row; with a stride on those of the input's phases."""

    tile: Block

    @property
    def runs(self) -> Pair:
        """How many runs of positions are summed for a sample, and how long they are: flat planes are one, or rows."""
        delta = self.operation.output
        if delta.layout.unit_memory_width == self.source.pitch or delta.shape.height == 1:
            return 1, delta.shape.width + (delta.shape.height - 1) * delta.layout.unit_memory_width
        return delta.shape.height, delta.shape.width

    @property
    def cost(self) -> float:
        operation, (rows, run) = self.operation, self.runs
        most = self.tunables(operation)["MAXIMUM_LANES"]
        # A vector that holds less than the most lanes takes as long.
        positions = rows * -(-run // power_of_two(run, most)) * most * (ONE_TAP_COST if operation.taps == 1 else 1)
        return self._cost(self.tile.cost * positions) + WEIGHT_COST * operation.weights / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, source, tile, (rows, run) = self.operation, self.source, self.tile, self.runs
        tunables = self.tunables(operation)
        column_blocks = -(-operation.columns // tile.vectors)
        unit_blocks = operation.groups * -(-operation.units // tile.units)
        lanes = power_of_two(run, tunables["MAXIMUM_LANES"])
        layout = operation.output.layout
        both = layout.unit_count * layout.unit_memory_elements, source.elements
        elements = [operation.batch_size * count for count in both]
        splits = max(
            splits_for(unit_blocks * column_blocks, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"]),
            splits_for(1, -(-sum(elements) // SPLIT_ELEMENTS), tunables["MAXIMUM_SPLITS"]),
        )
        of_units, of_columns = (count // (operation.groups * splits) for count in elements)
        size, order = _order(unit_blocks, column_blocks, reads(of_units, unit_blocks, of_columns, column_blocks))
        facts: dict[str, Macro] = {
            **source.macros,
            **order,
            "FLAT": int(rows == 1),
            "PIECE": min(run, rounded_up(tunables["PIECE_POSITIONS"], lanes)) if rows == 1 else run,
            "SPLITS": splits,
            "LANES": lanes,
            "BLOCK_COLUMNS": tile.vectors,
            "BLOCK_UNITS": tile.units,
        }
        partials, reductions = split_sum(operation, splits)
        blob, copy = source.copied(operation)
        work = GlobalSize(*size, splits, per_sample=False)
        return [*copy, operation.call(self.kernel, work, None, facts, INPUT=blob, PARTIALS=partials), *reductions]


def _order(unit_blocks: int, column_blocks: int, read: Pair, *, tied: bool = False) -> tuple[Pair, dict[str, Macro]]:
    """Width and height in the order of blocks that reads less (:func:`reads`), and the macro of kernels/.../order.h.

    ``tied``: whether units come first where both read as much.
    """
    units_first = read[0] < read[1] or (tied and read[0] == read[1])
    size = (unit_blocks, column_blocks) if units_first else (column_blocks, unit_blocks)
    return size, {"UNITS_FIRST": int(units_first)}
