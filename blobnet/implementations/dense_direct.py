"""Dense layers by tiles of sums in registers, straight from the blobs; a sample is one row of a matrix."""

from __future__ import annotations

from blobnet.blob import BlobLayout
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.blocking import blocks
from blobnet.kernel_call import GlobalSize, KernelCall, power_of_two
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
    kernels = "dense/{direction}"

    @property
    def cost(self) -> float:
        operation = self.operation
        return operation.batch_size * operation.weights / operation.cores / _SPEEDS[operation.direction]

    def calls(self) -> list[KernelCall]:
        operation, output_units = self.operation, self.operation.units
        tunables = self.tunables(operation)
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
            best = blocks(output_units, most_samples, most_units, most_samples, sums)[0]
            size = GlobalSize(local, -(-output_units // best.units), samples=best.vectors)
            macros |= {"BLOCK_SAMPLES": best.vectors, "BLOCK_UNITS": best.units}
        elif operation.direction == BACKWARD_DATA:
            # Sums over the output units.
            most = tunables["MAXIMUM_SAMPLES"]
            best = blocks(most, groups, most, tunables["MAXIMUM_VECTORS"], sums)[0]
            size = GlobalSize(-(-groups // best.vectors) * local, samples=best.units)
            macros |= {"BLOCK_SAMPLES": best.units, "BLOCK_VECTORS": best.vectors}
        else:
            # Outer products over the samples.
            limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], sums
            best = blocks(output_units, groups, *limits)[0]
            size = GlobalSize(-(-groups // best.vectors) * local, -(-output_units // best.units), per_sample=False)
            macros |= {"BLOCK_UNITS": best.units, "BLOCK_VECTORS": best.vectors}
        return [operation.call(self.kernel, size, local, macros)]


def _rows(layout: BlobLayout, tunables: dict[str, int]) -> tuple[dict[str, Macro], int]:
    """Macros that describe a sample as runs of consecutive values, and the number of vectors in it."""
    if layout.is_contiguous:
        rows, run = 1, layout.unit_count * layout.unit_elements
    else:
        rows, run = layout.plane_count * layout.unit_height, layout.unit_width
    lanes = power_of_two(run, tunables["MAXIMUM_LANES"])
    return {"ROWS": rows, "ROW_ELEMENTS": run, "LANES": lanes}, rows * -(-run // lanes)
