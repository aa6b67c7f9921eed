"""Convolutions whose lanes are samples, which a copy lays side by side: for CPUs, at small planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from blobnet.implementations.base import BACKWARD_DATA, Candidate, Implementation
from blobnet.implementations.blocking import READ_COST, VectorTile, reads, vector_tiles
from blobnet.implementations.operation import Operation, Phase
from blobnet.kernel_call import Array, GlobalSize, KernelCall
from blobnet.kernel_source import Macro

#: What it costs to copy a value, and to store one of another sample each time, in multiply-adds of a compute unit.
COPY_COST, STORE_COST = 60, 100
#: Units of a group that lie together, position by position: each tap then reads long runs of memory.
RUN = 16


@dataclass(frozen=True)
class Copy:
    """A copy of what an operation reads, its samples side by side in vectors of ``lanes`` (kernels/blob/gather.cl)."""

    operation: Operation
    lanes: int

    @property
    def samples(self) -> int:
        """Samples side by side, padded to whole vectors."""
        return -(-self.operation.batch_size // self.lanes) * self.lanes

    @property
    def elements(self) -> int:
        """Values of the copy."""
        return self.a_sample * self.samples

    @property
    def a_sample(self) -> int:
        """Values of one sample."""
        layout = self.operation.source.layout
        positions = (layout.unit_height - 1) * layout.unit_memory_width + layout.unit_width
        return self.operation.groups * -(-self.operation.depth // self.run) * self.run * positions

    @property
    def run(self) -> int:
        """Units that lie together."""
        return min(RUN, self.operation.depth)

    @property
    def macros(self) -> dict[str, Macro]:
        """What a kernel that reads the copy must know."""
        layout = self.operation.source.layout
        return {
            "SOURCE_HEIGHT": layout.unit_height,
            "SOURCE_WIDTH": layout.unit_width,
            "SOURCE_PITCH": layout.unit_memory_width,
            "RUN": self.run,
            "SAMPLES": self.samples,
        }

    @property
    def array(self) -> Array:
        """The copy's memory."""
        role = "output delta" if self.operation.direction == BACKWARD_DATA else "input"
        memory = self.operation.memory(f"{role} gathered by samples", (self.lanes - 1) * self.a_sample, self.a_sample)
        return replace(memory, side_by_side=True)

    @property
    def call(self) -> KernelCall:
        """The launch that copies."""
        return self.operation.call(
            "blob/gather",
            GlobalSize(self.samples // self.lanes, units=self.operation.source.shape.units, per_sample=False),
            macros={"GROUP_UNITS": self.operation.depth, "LANES": self.lanes},
            facts=self.macros,
            blobs={"INPUT": self.operation.source},
            arrays={"GATHERED": self.array},
            label=f"{self.operation.label}: gather",
        )

    def reads(self, tile: VectorTile, taps: int) -> int:
        """Elements that a product reads from beyond a cache: positions follow one another."""
        operation = self.operation
        of_samples = -(-self.samples // (tile.lanes * tile.vectors))
        source = self.elements // (operation.groups * of_samples)
        blocks = -(-operation.units // tile.units)
        return reads(operation.units * operation.depth * taps, blocks, source, 1)[1] * operation.groups * of_samples


class Gathered(Implementation):
    """Lanes of samples, which a copy lays side by side; a launch for each phase."""

    lanes = False
    forward = "convolution/forward_gathered"
    backward_data = "convolution/backward_data_gathered"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        phases, results = operation.phases, operation.result.shape.elements * operation.batch_size
        taps = sum(phase.taps_inside(operation.source.shape) for phase in phases)
        tunables = operation.tuning.of(self.kernel(operation))
        for tile in vector_tiles(tunables, operation.units, operation.batch_size):
            gathered = Copy(operation, tile.lanes)
            cost = tile.cost * taps * operation.depth * operation.groups
            cost += COPY_COST * gathered.elements + STORE_COST * results
            cost += READ_COST * sum(gathered.reads(tile, phase.taps) for phase in phases)
            calls = partial(self._calls, operation, phases, tile, gathered)
            yield Candidate(self.way(tile), cost / operation.cores, calls)

    def _calls(
        self, operation: Operation, phases: Sequence[Phase], tile: VectorTile, gathered: Copy
    ) -> list[KernelCall]:
        blocks = operation.groups * -(-operation.units // tile.units)
        products = [
            operation.call(
                self.kernel(operation),
                GlobalSize(phase.height * phase.width, blocks, samples=tile.values),
                macros={**gathered.macros, **tile.macros},
                facts=phase.macros,
                arrays={"GATHERED": gathered.array},
            )
            for phase in phases
        ]
        return [gathered.call, *products] if products else []
