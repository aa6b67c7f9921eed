"""Tunings for devices of which only the kind is known, or a few facts more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from blobnet.blob import Padding
from blobnet.device import Device
from blobnet.device_model import GENERIC, DeviceModel, model_of
from blobnet.kernel_call import Tuning
from blobnet.task import Choices

_NO_CHOICES, _NO_PADDING = Choices(), Padding()


def tuning_for(
    kind: str,
    overrides: Mapping[str, Mapping[str, int]] | None = None,
    *,
    choices: Choices = _NO_CHOICES,
    broken: frozenset[str] = frozenset(),
    precision: str = "fp32",
    only: Iterable[str] = (),
    padding: Padding = _NO_PADDING,
    **facts: Any,
) -> Tuning:
    """For ``cpu`` or ``gpu``, with other ``facts`` of :class:`DeviceModel`: ``compute_units``, ``local_memory``."""
    model: DeviceModel = replace(GENERIC[kind], **facts)
    return Tuning(model, overrides or {}, choices, broken, precision, frozenset(only), padding)


def as_gpu(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Has a device stand in for a GPU: its model, so its plans and kernels, and how the host treats it."""
    monkeypatch.setitem(vars(device.info), "model", model_of(replace(device.info.answers, is_host=False)))
    monkeypatch.setattr(Device, "is_host", False)
