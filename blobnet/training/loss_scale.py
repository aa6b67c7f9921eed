"""The loss scale on the device, which the optimizer's kernels move by themselves (kernels/optimizer/clip_scale.cl)."""

from __future__ import annotations

from typing import Any

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import TrainingError
from blobnet.losses.base import LOSS_SCALE_ELEMENTS
from blobnet.optimizers.base import FIRST_LOSS_SCALE, LEAST_LOSS_SCALE
from blobnet.training.advice import BEYOND


class LossScale:
    """The number that deltas, and with them gradients on the device, are multiplied by.

    Args:
        device: where it is.
        buffer: what holds it; None where nothing is scaled.

    Attributes:
        is_used: whether anything is scaled.
    """

    def __init__(self, device: Device, buffer: Any) -> None:
        self._device, self._buffer, self.is_used = device, buffer, buffer is not None
        if self.is_used:
            self._write(FIRST_LOSS_SCALE)

    def value(self) -> float:
        """Return that of the next batch; waits for the device."""
        return float(self._device.memory.read(self._buffer, LOSS_SCALE_ELEMENTS)[0]) if self.is_used else 1.0

    def check(self, **when: Any) -> None:
        """Raises TrainingError where no scale made gradients finite; waits for the device."""
        if self.value() < LEAST_LOSS_SCALE:
            rule = "the gradients must be finite in some steps, at some loss scale"
            raise TrainingError("training", rule, **when, loss_scale=self.value(), hint=BEYOND)

    def lower(self) -> bool:
        """Halve it, without a step, unless it is 1 or less; return whether it was halved."""
        scale = self.value()
        if scale > 1:
            self._write(scale / 2)
        return scale > 1

    def _write(self, scale: float) -> None:
        self._device.memory.write(self._buffer, np.array([scale, 0], np.float32))
