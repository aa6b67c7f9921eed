"""Square filters at stride 1 by discrete Fourier transforms (Mathieu et al. 2014, arXiv 1312.5851), on GPUs.

As minimal filtering (winograd.py), but a patch becomes its spectrum. A number there is complex, and so two of the real
numbers that products are of.
"""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_WEIGHTS
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import Tile, fitting
from blobnet.implementations.winograd import TILES, WEIGHT_TILES, Local, Winograd
from blobnet.launch.kernel_call import GlobalSize
from blobnet.memory.blob import FLOAT32

#: Cells of a patch on a side, and the points of its spectrum of which the others are conjugates.
_SIDE, _POINTS = 32, 514
#: Taps on a side: of fewer, minimal filtering is faster; of more, filters have no room in registers.
_TAPS = range(4, 8)
#: Patches or units side by side in a work-group that transforms them, and patches that fill every tile of products.
_LANES, _WHOLE = 8, 64
#: Bytes of local memory of a work-group that transforms patches (kernels/convolution/fourier.h).
_LOCAL_BYTES = FLOAT32.itemsize * _LANES * (_SIDE * (_SIDE + 1) + 4)
#: Tiles of products beside those of minimal filtering.
_TILES = (Tile(96, 128, 16, 12, 8, speed=1.0, busy=2),)


class Fourier(Winograd):
    """Discrete Fourier transforms: square filters of many taps at stride 1, in patches of 32 x 32 cells."""

    weight, patch = "convolution/fourier_weight", "convolution/fourier_patch"
    result, gradient = "convolution/fourier_result", "convolution/fourier_gradient"
    parts, slices = 2, 4

    @classmethod
    def tiles(cls, operation: Operation) -> list[tuple[Tile, str, int, int]]:
        taps, model = operation.vertical.kernel, operation.tuning.model
        if taps not in _TAPS or model.group_size < _LANES * _SIDE or model.local_memory < _LOCAL_BYTES:
            return []
        known = WEIGHT_TILES if operation.direction == BACKWARD_WEIGHTS else TILES
        return [(tile, "fourier", _SIDE - taps + 1, _POINTS) for tile in fitting((*known, *_TILES), model)]

    @property
    def result_work(self) -> tuple[GlobalSize, Local]:
        return self._work(1, self.operation.groups * self.operation.units, _LANES)

    def patch_work(self, units: int) -> tuple[GlobalSize, Local]:
        """A work-group takes _LANES patches of a unit; for sums over the batch, a patch of _LANES units."""
        groups = self.operation.groups
        if self.of_weights:
            return self._work(_WHOLE * units // _LANES, groups, _WHOLE)
        return self._work(_WHOLE // _LANES, groups * units, _WHOLE)

    def _work(self, work_groups: int, units: int, patches: int) -> tuple[GlobalSize, Local]:
        """So many work-groups, along the width, for each so many patches."""
        items = _LANES * _SIDE
        return GlobalSize(work_groups * items, 1, units, positions=self.sample_patches, tile=patches), items
