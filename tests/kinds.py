"""Tunings for devices of which only the kind is known, or a few facts more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from blobnet.device import compiler
from blobnet.device.compiler import preamble
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo
from blobnet.device.programs import Programs
from blobnet.hardware.device_model import GENERIC, Answers, DeviceModel, model_of
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import BrokenVariant, TunedChoices
from blobnet.memory.blob import FLOAT32, NUMBERS_OF, Padding, StorageType
from tests.small_tiles import take_small_patches, take_small_tiles

_NO_CHOICES, _NO_PADDING = TunedChoices(), Padding()
#: The cells of numbers of a type.
CELLS_OF_NUMBERS = {numbers: cells for cells, numbers in NUMBERS_OF.items()}
#: What work-groups of every ``gpu`` may have, where tests run on a simulated one.
_LIMITS: dict[str, int] = {}


def limit_to(answers: Answers) -> None:
    """Has every ``gpu`` allow no larger work-groups than the one that gave these answers."""
    _LIMITS.update(group_size=answers.group_size, local_memory=answers.local_memory)


def kind_of(device: Device) -> str:
    """The word for a device that :func:`tuning_for` takes."""
    return "cpu" if device.is_host else "gpu"


def tuning_for(
    kind: str,
    tunables: Mapping[str, Mapping[str, int]] | None = None,
    *,
    choices: TunedChoices = _NO_CHOICES,
    broken: Iterable[str] = (),
    precision: str = "fp32",
    only: Iterable[str] = (),
    padding: Padding = _NO_PADDING,
    storage: StorageType = FLOAT32,
    **facts: Any,
) -> Tuning:
    """For ``cpu`` or ``gpu``, with other ``facts`` of :class:`DeviceModel`: ``compute_units``, ``local_memory``.

    ``tunables`` are those of single kernels, ``broken`` the names of faults.
    """
    model: DeviceModel = replace(GENERIC[kind], tunables=tunables or {}, **(_LIMITS if kind == "gpu" else {}) | facts)
    parts = {"broken": frozenset(map(BrokenVariant.parse, broken)), "only": frozenset(only)}
    return Tuning(model, precision, replace(choices, **parts), padding, storage)


def only(tuning: Tuning, *names: str) -> Tuning:
    """The same with these implementations or variants alone."""
    return replace(tuning, choices=replace(tuning.choices, only=frozenset(names)))


def as_gpu(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Has a device stand in for a GPU: its model, so its plans and kernels, and how the host treats it.

    Its tiles and patches are small: drivers for CPUs take seconds for a GPU's.
    """
    take_small_tiles(monkeypatch)
    take_small_patches(monkeypatch)
    # Not what a GPU's compiler is asked for: with its lanes one for CPUs takes seconds.
    own = preamble(device.info.model)
    monkeypatch.setattr(compiler, "preamble", lambda model: own)
    monkeypatch.setattr(Programs, "builds_in_children", False)  # They would build for the device that it is.
    monkeypatch.setitem(vars(device.info), "model", model_of(replace(device.info.answers, is_host=False)))
    monkeypatch.setattr(DeviceInfo, "is_host", False)
