"""Gradients of the weights of convolutions whose lanes are input units, which a copy lays side by side: for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.implementations.base import Candidate, Implementation
from blobnet.implementations.blocking import VectorTile, splits_for, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro

#: What it costs to copy a value, and to put a weight's sum in its place, in multiply-adds of a compute unit.
COPY_COST, WEIGHT_COST = 40, 60
#: What the launches around the product cost, on the same scale but for all compute units.
LAUNCHES_COST = 100_000


class Unitwise(Implementation):
    """Lanes of input units of a tap, which a copy lays side by side, at all output units."""

    lanes = False
    backward_weights = "convolution/backward_weight_unitwise"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        source, phases = operation.input.shape, operation.input_phases
        taps = operation.phases[0].taps_inside(source)
        # What it reads, and what of it goes into phases that a tap reads.
        copied = (source.height * source.width + phases.planes * phases.height * phases.width) / 2
        copying = COPY_COST * copied * source.units * operation.batch_size
        tunables = operation.tuning.of(self.backward_weights)
        for tile in vector_tiles(tunables, operation.output_units, operation.input_units):
            cost = tile.cost * taps * operation.batch_size * operation.groups + copying
            if operation.taps > 1:
                cost += WEIGHT_COST * operation.weights
            calls = partial(self._calls, operation, tile)
            yield Candidate(self.way(tile), cost / operation.cores + LAUNCHES_COST, calls)

    def _calls(self, operation: Operation, tile: VectorTile) -> list[KernelCall]:
        kernel, delta, phases = self.backward_weights, operation.output.shape, operation.input_phases
        tunables = operation.tuning.of(kernel)
        panels = operation.groups * tile.count
        ranges = -(-operation.output_units // (tile.units * tunables["RANGE_BLOCKS"]))
        splits = splits_for(ranges * operation.taps * panels, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"])

        gradient, columns = operation.gradient, tile.count * tile.values
        whole = operation.taps == 1 and splits == 1 and columns == operation.input_units
        sums = splits * operation.taps * delta.units * columns
        arrays = {"PARTIALS": gradient if whole else operation.memory("weight partials", sums), "GRADIENT": gradient}
        copied = operation.groups * columns * phases.planes * phases.height * phases.width
        arrays["PANELS"] = operation.memory("input in panels", per_sample=copied)
        facts: dict[str, Macro] = {
            **tile.macros,
            **phases.macros,
            "PANEL_UNITS": tile.values,
            "SPLITS": splits,
            "PIECE_ROWS": min(max(1, tunables["PIECE_POSITIONS"] // delta.width), delta.height),
            "RANGE": tunables["RANGE_BLOCKS"] * tile.units,
            "UNITS": delta.units,
            "COLUMNS": columns,
        }
        pack, product, place = (
            operation.call(name, size, facts=facts, arrays=arrays, label=label)
            for name, size, label in (
                ("convolution/pack_units", GlobalSize(panels * tile.vectors), f"{operation.label}: pack"),
                (kernel, GlobalSize(ranges, operation.taps, panels * splits, per_sample=False), ""),
                (
                    "convolution/unitwise_gradient",
                    GlobalSize(-(-operation.input_units // tile.lanes), delta.units, per_sample=False),
                    "",
                ),
            )
        )
        return [pack, product] if whole else [pack, product, place]
