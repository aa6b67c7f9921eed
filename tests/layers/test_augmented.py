"""Samples that change on their way into the network: the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers
from blobnet.augment import (
    Augmentation,
    Brightness,
    Contrast,
    CutMix,
    Erasing,
    Flip,
    Mixup,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Saturation,
)
from blobnet.augment.epoch_rows import rows_for
from blobnet.device.device import Device
from blobnet.examination.reference.augmentation import augmented
from blobnet.execution.executor import Executor
from blobnet.layers.input import AUGMENTATION_WORDS, POLICY_WORDS
from blobnet.memory.blob import FLOAT16, FLOAT32, FloatArray, Shape, StorageType
from blobnet.model import Sequential
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.reference.compare import assert_close

COUNT = 5
TYPES = ["uint8", "int8", "uint16", "int16", "float16", "float32"]
CLASSES = pytest.mark.parametrize("device_class", ["cpu", "gpu"])


def samples_of(sample_type: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    values = np.random.default_rng(3).uniform(0, 120, (COUNT + 2, *shape))
    return (values - (40 if sample_type[0] != "u" else 0)).astype(sample_type)


def entered(
    device: Device,
    samples: npt.NDArray[Any],
    chosen: npt.NDArray[np.int32],
    rows: FloatArray | None,
    mean: FloatArray,
    deviation: FloatArray,
    device_class: str,
    storage: StorageType = FLOAT32,
) -> FloatArray:
    """What the input layer leaves of the chosen samples: with rows of augmentation, or without."""
    entry = layers.Input.of(Shape(*samples.shape[1:]), name="input")
    filters = (layers.Conv2D if samples.ndim == 4 else layers.Conv3D)(1, 3, padding=1)
    model = Sequential([entry, filters])
    model.set_normalization(mean, deviation)
    steps = 0 if rows is None else (rows.shape[1] - AUGMENTATION_WORDS) // POLICY_WORDS
    settings: dict[str, Any] = {"sample_type": samples.dtype.name, "augmented": rows is not None, "policy_steps": steps}
    plan = make_plan(model.graph, len(samples), tuning=tuning_for(device_class, storage=storage), **settings)
    executor = Executor(device, plan, debug=True)
    executor.write_array("parameters", plan.request.parameters.pack(model.weights))
    executor.feed("samples", samples)
    executor.feed("rows", chosen)
    if rows is not None:
        executor.feed("augmentation", rows)
    calls = plan.phase("forward")[: 2 if steps else 1]
    kernels = ["input/policy"] if steps else []
    assert [call.kernel for call in calls] == [*kernels, "input/forward" if rows is None else "input/augmented"]
    executor.launch(executor.bind(calls, len(chosen)), len(chosen))
    return executor.read_blob(plan.outputs["input"], len(chosen))


def statistics(units: int) -> tuple[FloatArray, FloatArray]:
    return np.linspace(20, 60, units, dtype=np.float32), np.linspace(11, 30, units, dtype=np.float32)


#: The list for units that are colours, and for others.
EVERYTHING: list[Augmentation] = [
    RandomCrop(2),
    RandomResizedCrop(),
    Brightness(0.5),
    Saturation(0.8),
    Flip(horizontal=True, vertical=True),
    Contrast(0.7),
    RandomAffine(40, 0.2, (0.6, 1.5)),
    Saturation(0.5),
    Erasing(0.7),
]
WITHOUT_GRAY = [item for item in EVERYTHING if not isinstance(item, Saturation)]


@CLASSES
@pytest.mark.parametrize("sample_type", TYPES)
@pytest.mark.parametrize("shape", [(3, 7, 11), (2, 9, 4)], ids=str)
def test_rows_against_the_reference(
    device: Device, shape: tuple[int, int, int], sample_type: str, device_class: str
) -> None:
    samples, chosen = samples_of(sample_type, shape), np.array([6, 0, 3, 3, 1], np.int32)
    mean, deviation = statistics(shape[0])
    everything = EVERYTHING if shape[0] == 3 else WITHOUT_GRAY
    mixtures = [Mixup(1, 0.8), CutMix(1, 0.8)]
    for some in (everything, [RandomCrop(3), Flip(vertical=True)], [*everything, *mixtures], [Flip(), *mixtures]):
        rows = rows_for(some, Shape(*shape), seed=4, epoch=2, samples=np.arange(COUNT))
        output = entered(device, samples, chosen, rows, mean, deviation, device_class)
        wanted = augmented(samples[chosen], rows, mean.astype(np.float64), deviation.astype(np.float64))
        assert_close(output, wanted, relative=1e-5, absolute=5e-5, what=str(some))
        assert np.mean(wanted == 0) < 0.9


@CLASSES
@pytest.mark.parametrize("sample_type", ["uint8", "float32"])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (2, 3, 4, 6)], ids=str)
def test_all_planes_of_a_volume_change_alike(
    device: Device, shape: tuple[int, int, int, int], sample_type: str, device_class: str
) -> None:
    """Each plane is what it would be as a picture of its own; a cell's gray is that of its plane."""
    samples, chosen = samples_of(sample_type, shape), np.array([6, 0, 3, 3, 1], np.int32)
    mean, deviation = statistics(shape[0])
    everything = EVERYTHING if shape[0] == 3 else WITHOUT_GRAY
    for some in (everything, [RandomCrop(3), Flip(vertical=True)], [*everything, Mixup(1, 0.8), CutMix(1, 0.8)]):
        rows = rows_for(some, Shape(*shape), seed=4, epoch=2, samples=np.arange(COUNT))
        output = entered(device, samples, chosen, rows, mean, deviation, device_class)
        planes = [
            augmented(samples[chosen][:, :, z], rows, mean.astype(np.float64), deviation.astype(np.float64))
            for z in range(shape[1])
        ]
        wanted = np.stack(planes, axis=2)
        assert_close(output, wanted, relative=1e-5, absolute=5e-5, what=str(some))
        assert not np.allclose(wanted[:, :, 0], wanted[:, :, 1])


@CLASSES
def test_samples_become_halves(device: Device, device_class: str) -> None:
    """What is pasted from a partner is rounded twice."""
    samples, chosen = samples_of("uint8", (3, 7, 11)), np.array([6, 0, 3, 3, 1], np.int32)
    mean, deviation = statistics(3)
    for some in ([], EVERYTHING, [*EVERYTHING, Mixup(1, 0.8)]):
        rows = rows_for(some, Shape(3, 7, 11), seed=4, epoch=2, samples=np.arange(COUNT)) if some else None
        found = entered(device, samples, chosen, rows, mean, deviation, device_class, FLOAT16)
        exact = entered(device, samples, chosen, rows, mean, deviation, device_class)
        assert_close(found, exact, relative=1e-3, absolute=1e-3, what=str(some))
        assert (found != exact).any()
        if len(some) <= len(EVERYTHING):
            np.testing.assert_array_equal(found, exact.astype(np.float16))


@CLASSES
def test_a_row_that_changes_nothing_gives_the_bits_of_the_plain_kernel(device: Device, device_class: str) -> None:
    samples, chosen = samples_of("float32", (3, 7, 11)), np.array([2, 5, 0, 1, 6], np.int32)
    samples[2, 0, 0] = -0.0
    mean, deviation = statistics(3)
    mean[0] = 0
    rows = rows_for([], Shape(3, 7, 11), 0, 0, chosen)
    plain = entered(device, samples, chosen, None, mean, deviation, device_class)
    assert entered(device, samples, chosen, rows, mean, deviation, device_class).tobytes() == plain.tobytes()


@CLASSES
def test_shifts_and_flips_keep_the_bits(device: Device, device_class: str) -> None:
    samples, chosen = samples_of("float32", (2, 6, 9)), np.arange(COUNT, dtype=np.int32)
    mean, deviation = statistics(2)
    plain = entered(device, samples, chosen, None, mean, deviation, device_class)
    rows = rows_for([], Shape(2, 6, 9), 0, 0, chosen)
    rows[0, :6] = (1, 0, 2, 0, 1, -3)
    rows[1, :6] = (1, 0, 0, 0, -1, 8)
    rows[2, :6] = (-1, 0, 5, 0, 1, 0)
    rows[3, 6:10] = (1, 2, 4, 7)
    rows[4, :6] = (1, 0, 100, 0, 1, 0)
    wanted = plain.copy()
    wanted[0] = 0
    wanted[0, :, :4, 3:] = plain[0, :, 2:, :6]
    wanted[1] = plain[1, :, :, ::-1]
    wanted[2] = plain[2, :, ::-1]
    wanted[3, :, 1:4, 2:7] = 0
    wanted[4] = 0
    assert np.array_equal(entered(device, samples, chosen, rows, mean, deviation, device_class), wanted)
    rows = rows_for([], Shape(2, 6, 9), 0, 0, chosen)
    rows[:, 4:6] = [(1, 1e9), (-1, 1e9), (1, -9), (-1, -1), (-1, 10)]
    wanted[:] = 0
    wanted[4, :, :, 2:] = plain[4, :, :, :1:-1]
    assert np.array_equal(entered(device, samples, chosen, rows, mean, deviation, device_class), wanted)


@CLASSES
@pytest.mark.parametrize("count", [1, 2, 5])
def test_cells_of_the_next_sample_are_pasted_as_they_are(device: Device, count: int, device_class: str) -> None:
    samples, chosen = samples_of("float32", (2, 6, 9)), np.array([4, 1, 6, 6, 0], np.int32)[:count]
    mean, deviation = statistics(2)
    plain = entered(device, samples, chosen, None, mean, deviation, device_class)
    rows = rows_for([], Shape(2, 6, 9), 0, 0, chosen)
    rows[:, 14:] = [(1, 2, 4, 7, 1), (0, 0, 6, 9, 1), (5, 8, 6, 9, 1), (0, 0, 0, 0, 1), (2, 2, 3, 3, 0)][:count]
    wanted = plain.copy()
    wanted[0, :, 1:4, 2:7] = plain[1 % count, :, 1:4, 2:7]
    if count > 1:
        wanted[1] = plain[2 % count]
    if count > 2:
        wanted[2, :, 5, 8] = plain[3, :, 5, 8]
    assert np.array_equal(entered(device, samples, chosen, rows, mean, deviation, device_class), wanted)
