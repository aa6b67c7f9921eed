"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from blobnet.implementations.base import BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.blocking import (
    READ_COST,
    VECTOR_COST,
    Block,
    blocks,
    order,
    reads,
    splits_for,
    vector_tiles,
)
from blobnet.implementations.operation import Operation, Phase
from blobnet.launch.kernel_call import Blob, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import power_of_two
from blobnet.memory.blob import BlobLayout
from blobnet.memory.windows import Pair

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21
#: What it costs to copy a value when the input is split into phases, and to store one where vectors are not whole, in
#: multiply-adds.
COPY_COST, STORE_COST = 40, 50
#: Vectors of a row from which on storing them costs no more than elsewhere: the last alone overlaps the one before.
LONG_ROW = 4
#: Most vectors of sums where several taps read phases: with 24, Intel's compiler makes loops of 0.6 of the speed.
SPLIT_ACCUMULATORS = 20
#: With one tap: what forward takes of what is counted, but for the copy, since results go from registers straight to
#: memory; and how much longer the gradient takes, where no other tap reads what a column has brought near.
ONE_TAP_FORWARD_COST, ONE_TAP_COST = 0.85, 1.15
#: What it costs to add up the lanes of a weight's sum and to store it, in multiply-adds.
WEIGHT_COST = 200


class Part(NamedTuple):
    """The part of one launch: a phase, along flat planes of the source's pitch, or along rows of the result's own."""

    phase: Phase
    tile: Block
    flat: bool


class Direct(Implementation):
    """Tiles of sums in registers, straight from the blobs."""

    lanes = False
    kernels = "convolution/{direction}"

    def __init__(self, operation: Operation, tile: object = "", *parts: Part) -> None:
        super().__init__(operation, tile)
        self.parts = parts
        split = operation.split_input
        #: Whether it reads the input at a stride from a copy, split into phases, and how what it reads lies in memory.
        self.copies, self.layout = split is not None, split or operation.source.layout
        #: From a row of it to the next.
        self.pitch, is_forward = self.layout.width.memory, operation.direction == FORWARD
        #: Whether results are stored in other places of a row than they are computed.
        self.moves = is_forward and self.pitch != operation.result.layout.width.memory
        #: What a sample's copy costs.
        self.copying = COPY_COST * self.copies * self.layout.memory_elements

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return "convolution/forward_flat" if direction == FORWARD else super().kernel_of(direction)

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        if operation.direction == BACKWARD_WEIGHTS:
            tunables = cls.tunables(operation)
            limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
            found, most = blocks(operation.units, operation.columns, *limits), tunables["MAXIMUM_LANES"]
            yield from (_Gradient(operation, block, most) for block in found)
            return
        # A launch for each phase; its tiles are a candidate each if there is one phase, else each phase's cheapest.
        parts = [cls(operation)._parts(phase) for phase in operation.phases]
        if len(parts) == 1:
            yield from (cls(operation, part.tile, part) for part in parts[0])
        else:
            yield cls(operation, "", *(of_phase[0] for of_phase in parts))

    def _parts(self, phase: Phase) -> list[Part]:
        """The ways to make a phase, the cheapest first.

        Along rows of their own, if they take no more vectors and the result has another pitch: more of these are stored
        as they are.
        """
        operation, width, height = self.operation, phase.horizontal.size, phase.vertical.size
        tunables, stride = self.tunables(operation), operation.unit_stride
        if self.copies and operation.taps > 1:
            tunables["MAXIMUM_ACCUMULATORS"] = min(tunables["MAXIMUM_ACCUMULATORS"], SPLIT_ACCUMULATORS)
        tiles = flat = vector_tiles(tunables, operation.units, (height - 1) * self.pitch + width, stride=stride)
        if self.moves:
            rows = vector_tiles(tunables, operation.units, width, runs=height, stride=stride)
            tiles = rows if rows[0].cost <= flat[0].cost else flat
        return [Part(phase, tile, tiles is flat) for tile in tiles]

    def _reads(self, part: Part) -> Pair:
        """:func:`reads` of the tiles."""
        operation, tile = self.operation, part.tile
        weights, source = operation.units * operation.depth * part.phase.taps, _elements(self.layout)
        return reads(weights, -(-operation.units // tile.units), source // operation.groups, tile.count)

    @property
    def cost(self) -> float:
        operation, elements = self.operation, self.operation.result.shape.elements
        sums = sum(part.tile.cost * (part.phase.taps * operation.depth) for part in self.parts)
        cost = (sums + READ_COST * sum(min(self._reads(part)) for part in self.parts)) * operation.groups
        # NOTE: also where the copy's pitch spares that: batches of small planes are slower than panels nonetheless.
        is_widened = self.copies and self.pitch > self.layout.width.size
        # Long rows of the result's own are stored as they are.
        are_long = (not flat and phase.horizontal.size >= LONG_ROW * tile.lanes for phase, tile, flat in self.parts)
        if (self.moves or is_widened) and not all(are_long):
            cost += STORE_COST * elements
        if operation.direction == FORWARD and operation.taps == 1:
            cost *= ONE_TAP_FORWARD_COST
        return (cost + self.copying) * operation.batch_size / operation.cores

    def _copy(self) -> tuple[Blob, dict[str, Macro], list[KernelCall]]:
        """Return the blob that kernels read, its macros, and the launch that makes it, if it is a copy."""
        operation = self.operation
        if not self.copies:
            return operation.source, {"PHASES_Y": 1, "PHASES_X": 1}, []
        kernel, name = "convolution/split_phases", operation.direction.removesuffix("s")
        memory = operation.memory(f"phases {name}", per_sample=self.layout.memory_elements)
        blob = Blob(memory.storage, self.layout, is_memory=True, type=operation.source.type)
        lanes = 1 << (min(self.layout.width.size, operation.tuning.of(kernel)["MAXIMUM_LANES"]).bit_length() - 1)
        size, label = GlobalSize(1, 1, self.layout.unit_count), f"{operation.label}: split"
        # Padding is part of the phases.
        call = operation.call(kernel, size, None, label, LANES=lanes, PHASES=blob)
        return blob, {"PAD_TOP": 0, "PAD_LEFT": 0}, [call]

    def calls(self) -> list[KernelCall]:
        operation, (blob, macros, calls) = self.operation, self._copy()
        for part in self.parts:
            unit_blocks = operation.groups * -(-operation.units // part.tile.units)
            read = self._reads(part)
            # Where caches hold everything, each core makes a part of the positions if that spares it a part of a source
            # which is more than the result, and of which others have just written much.
            is_wide = operation.direction == FORWARD and operation.depth > operation.units
            size, in_order = order(unit_blocks, part.tile.count, read, tied=is_wide)
            # A work-item takes some time to begin, and what one stores side by side is stored sooner.
            items = self.tunables(operation)["TARGET_ITEMS"] * operation.cores
            count = size[0] * size[1]
            at_once = max(1, count * operation.batch_size // items)
            facts = part.tile.macros | in_order | part.phase.macros | macros
            facts |= {"FLAT": int(part.flat), "BLOCKS_AT_ONCE": at_once}
            # Backward data, which copies nothing, reads the delta and knows no INPUT.
            calls.append(operation.call(self.kernel, GlobalSize(-(-count // at_once)), INPUT=blob, **facts))
        return calls


class _Gradient(Direct):
    """Backward weights: on flat planes at one pitch, else row by row; with a stride on those of the input's phases."""

    tile: Block

    def __init__(self, operation: Operation, tile: Block, most_lanes: int) -> None:
        super().__init__(operation, tile)
        delta, layout = operation.output.shape, operation.output.layout
        #: How many runs of positions are summed for a sample, and how long they are: flat planes are one, or rows.
        self.runs, self.run = delta.height, delta.width
        if layout.width.memory == self.pitch or delta.height == 1:
            self.runs, self.run = 1, delta.width + (delta.height - 1) * layout.width.memory
        #: Lanes of a vector.
        self.width = power_of_two(self.run, most_lanes)

    @property
    def cost(self) -> float:
        operation = self.operation
        vectors = self.runs * -(-self.run // self.width) * (ONE_TAP_COST if operation.taps == 1 else 1)
        cost = self.tile.cost * vectors * VECTOR_COST * operation.groups + self.copying
        return cost * operation.batch_size / operation.cores + WEIGHT_COST * operation.weights / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, tile, tunables = self.operation, self.tile, self.tunables(self.operation)
        unit_blocks = operation.groups * -(-operation.units // tile.units)
        column_blocks = -(-operation.columns // tile.vectors)
        of_units, of_columns = (operation.batch_size * _elements(of) for of in (operation.output.layout, self.layout))
        splits = max(
            splits_for(unit_blocks * column_blocks, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"]),
            splits_for(1, -(-(of_units + of_columns) // SPLIT_ELEMENTS), tunables["MAXIMUM_SPLITS"]),
        )
        parts = operation.groups * splits
        read = reads(of_units // parts, unit_blocks, of_columns // parts, column_blocks)
        (blob, macros, copy), (size, in_order) = self._copy(), order(unit_blocks, column_blocks, read)
        piece = min(self.run, rounded_up(tunables["PIECE_POSITIONS"], self.width)) if self.runs == 1 else self.run
        own = {"LANES": self.width, "BLOCK_COLUMNS": tile.vectors, "BLOCK_UNITS": tile.units}
        facts = {**macros, **in_order, **own, "FLAT": int(self.runs == 1), "PIECE": piece}
        work = GlobalSize(*size, splits, per_sample=False)
        return [*copy, *operation.summed("weight", splits, self.kernel, work, INPUT=blob, **facts)]


def _elements(layout: BlobLayout) -> int:
    """Values of one sample's planes."""
    return layout.unit_count * layout.unit_memory_elements
