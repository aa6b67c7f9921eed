"""Dense layers by tiles of sums in registers, straight from the blobs; a sample is one row of a matrix."""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.blocking import blocks
from blobnet.launch.kernel_call import GlobalSize, KernelCall
from blobnet.launch.work_sizes import power_of_two

#: Speeds on a GPU, relative to the best product there: fitted to times on an NVIDIA H200 at batch 64. On a CPU there is
#: no other way.
_SPEEDS = {FORWARD: 0.15, BACKWARD_DATA: 0.12, BACKWARD_WEIGHTS: 0.35}
#: What a work-item waits for the factors of each term of its sums, in multiply-adds of a compute unit: 0.24 us (115 us
#: for 480 terms, there as well).
_WAIT = 60_000
#: What the tiles are of: dot products over the elements, sums over the output units, outer products over the samples.
_SIDES = {FORWARD: ("UNITS", "SAMPLES"), BACKWARD_DATA: ("SAMPLES", "VECTORS"), BACKWARD_WEIGHTS: ("UNITS", "VECTORS")}
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
        # Forward, a group shares the terms of a sum.
        terms = {FORWARD: 0, BACKWARD_DATA: operation.depth, BACKWARD_WEIGHTS: operation.batch_size}
        products = operation.batch_size * operation.weights / operation.cores / _SPEEDS[operation.direction]
        return max(products, terms[operation.direction] * _WAIT)

    def calls(self) -> list[KernelCall]:
        operation, layout, tunables = self.operation, self.operation.input.layout, self.tunables(self.operation)
        # A sample is runs of consecutive values, and these are vectors, one for each work-item of a group.
        rows, run, local = layout.plane_count * layout.height.size, layout.width.size, tunables["GROUP_WIDTH"]
        if layout.is_contiguous:
            rows, run = 1, layout.unit_count * layout.unit_elements
        lanes = power_of_two(run, tunables["MAXIMUM_LANES"])
        sides = _SIDES[operation.direction]
        most = {side: tunables[f"MAXIMUM_{side}"] for side in sides}
        if operation.direction == FORWARD:
            most["SAMPLES"] = min(operation.batch_size, most["SAMPLES"])
            if operation.tuning.model.is_simt:
                # For few samples the weights' bytes bind, which many groups read sooner.
                all_sums = operation.units * -(-operation.batch_size // most["SAMPLES"])
                most["UNITS"] = max(1, min(most["UNITS"], all_sums // (_GROUPS * operation.cores)))
        extents = {**most, "UNITS": operation.units, "VECTORS": -(-rows * -(-run // lanes) // local)}
        best = blocks(*(extents[side] for side in sides), *most.values(), tunables["MAXIMUM_ACCUMULATORS"])[0]
        tile = dict(zip(sides, (best.units, best.vectors), strict=True))
        counts = {side: -(-extents[side] // tile[side]) for side in sides}
        # Backward weights is over all samples, and the others over one or several.
        width, height, samples = counts.get("VECTORS", 1) * local, counts.get("UNITS", 1), tile.get("SAMPLES", 1)
        size = GlobalSize(width, height, per_sample="SAMPLES" in tile, samples=samples)
        facts = {"ROWS": rows, "ROW_ELEMENTS": run, "LANES": lanes, **{f"BLOCK_{side}": tile[side] for side in sides}}
        return [operation.call(self.kernel, size, local, **facts)]
