"""Dense layers by tiles of sums in registers, straight from the blobs; a sample is one row of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.blob import BlobLayout
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Candidate, Implementation
from blobnet.implementations.blocking import choose_tile, lanes_for
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro

#: Speeds on a GPU, relative to the best product there: fitted to times on an NVIDIA H200 at batch 64. On a CPU there is
#: no other way.
_SPEEDS = {FORWARD: 0.15, BACKWARD_DATA: 0.12, BACKWARD_WEIGHTS: 0.35}
#: Work-groups for each compute unit that the forward pass should have on a GPU.
_GROUPS = 4


class DenseDirect(Implementation):
    """Dense layers: tiles of sums in registers, straight from the blobs; backward weights with the bias' gradient."""

    lanes = None
    families = ("dense",)
    forward = "dense/forward"
    backward_data = "dense/backward_data"
    backward_weights = "dense/backward_weight"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        work = operation.batch_size * operation.weights
        cost = work / operation.cores / _SPEEDS[operation.direction]
        yield Candidate(self.way(), cost, partial(self._calls, operation))

    def _calls(self, operation: Operation) -> list[KernelCall]:
        kernel, output_units = self.kernel(operation), operation.output_units
        tunables = operation.tuning.of(kernel)
        local, sums = tunables["GROUP_WIDTH"], tunables["MAXIMUM_ACCUMULATORS"]
        macros, vectors = _rows(operation.input.layout, tunables)
        groups = -(-vectors // local)
        if operation.direction == FORWARD:
            # Dot products over the elements.
            most_samples = min(operation.batch_size, tunables["MAXIMUM_SAMPLES"])
            most_units = tunables["MAXIMUM_UNITS"]
            if operation.tuning.model.items_are_lanes:
                # For few samples the weights' bytes bind, which many groups read sooner.
                all_sums = output_units * -(-operation.batch_size // most_samples)
                most_units = max(1, min(most_units, all_sums // (_GROUPS * operation.cores)))
            units, samples = choose_tile(output_units, most_samples, most_units, most_samples, sums)
            size = GlobalSize(local, -(-output_units // units), samples=samples)
            macros |= {"BLOCK_SAMPLES": samples, "BLOCK_UNITS": units}
        elif operation.direction == BACKWARD_DATA:
            # Sums over the output units.
            most = tunables["MAXIMUM_SAMPLES"]
            samples, block = choose_tile(most, groups, most, tunables["MAXIMUM_VECTORS"], sums)
            size = GlobalSize(-(-groups // block) * local, samples=samples)
            macros |= {"BLOCK_SAMPLES": samples, "BLOCK_VECTORS": block}
        else:
            # Outer products over the samples.
            limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], sums
            units, block = choose_tile(output_units, groups, *limits)
            size = GlobalSize(-(-groups // block) * local, -(-output_units // units), per_sample=False)
            macros |= {"BLOCK_UNITS": units, "BLOCK_VECTORS": block}
        return [operation.call(kernel, size, (local, 1, 1), macros=macros)]


def _rows(layout: BlobLayout, tunables: dict[str, int]) -> tuple[dict[str, Macro], int]:
    """Macros that describe a sample as runs of consecutive values, and the number of vectors in it."""
    if layout.is_contiguous:
        rows, run = 1, layout.unit_count * layout.unit_elements
    else:
        rows, run = layout.plane_count * layout.unit_height, layout.unit_width
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    return {"ROWS": rows, "ROW_ELEMENTS": run, "LANES": lanes}, rows * -(-run // lanes)
