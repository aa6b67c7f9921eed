"""Dropout: its mask bit for bit, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers, losses, planning
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.examination.reference import dropout
from blobnet.execution.executor import Executor
from blobnet.launch.kernel_call import Batch, Tuning
from blobnet.layers import Dropout, StochasticDepth
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network import graph
from tests.kinds import kind_of, tuning_for
from tests.layers.layer_contract import ContractReport, check_central_differences, run_layer_contract
from tests.reference import masked
from tests.reference.compare import assert_close

TUNINGS = [tuning_for("cpu"), tuning_for("gpu")]
SEED = 0xFEDCBA9876543210
#: NOTE: not "by placement, inference": that one compares with the training reference. Inference has its own test.
IN_TRAINING = ("tight", "one pitch", "own pitches", "own zeros", "by placement (in place 0, delta in place)")
#: Odd planes, rows of one, one row, more than one work-item.
SHAPES = [
    Shape(3, 5, 7),
    Shape(2, 3, 1),
    Shape(4, 9),
    Shape.flat(11),
    Shape(1, 1, 1),
    Shape(5, 9, 31),
    Shape(2, 3, 4, 5),
]


def step_array(seed: int = SEED, step: int = 3) -> npt.NDArray[np.uint32]:
    return np.array([seed & 0xFFFFFFFF, seed >> 32, step, 0], np.uint32)


def mask_of(shape: Shape, rate: float, *, count: int = 3, ordinal: int = 5) -> npt.NDArray[np.float64]:
    return dropout.dropout_mask(SEED, 3, ordinal, count, shape.elements, rate)


def arrangements_of(shape: Shape, tuning: Tuning) -> Sequence[str]:
    """All of them for one shape: each is a program of its own."""
    return IN_TRAINING if (shape, tuning) == (SHAPES[0], TUNINGS[0]) else ["own pitches"]


def contract(
    device: Device,
    shape: Shape,
    rate: float,
    tuning: Tuning,
    *,
    count: int = 3,
    arrangements: Sequence[str] = IN_TRAINING,
) -> ContractReport:
    mask = mask_of(shape, rate, count=count)
    report = run_layer_contract(
        device,
        Dropout(rate),
        [shape],
        reference_forward=lambda inputs, parameters: masked.dropout(inputs[0], mask),
        reference_backward=lambda inputs, parameters, delta: ([masked.dropout_backward(inputs[0], mask, delta)], {}),
        shared={"step": step_array()},
        count=count,
        relative=1e-6,
        absolute=1e-6,
        ordinal=5,
        tuning=tuning,
        arrangements=arrangements,
    )
    assert set(report.runs) == set(arrangements)
    return report


@pytest.mark.parametrize("tuning", TUNINGS, ids=lambda tuning: tuning.model.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(device: Device, shape: Shape, tuning: Tuning) -> None:
    # NOTE: one memory layout after the other, so this is also the test that the layout makes no difference.
    arrangements = arrangements_of(shape, tuning)
    report = contract(device, shape, 0.4, tuning, arrangements=arrangements)
    assert report.runs["own pitches"].kernels == ["dropout/forward", "dropout/backward"]
    mask = mask_of(shape, 0.4) > 0
    for run in report.runs.values():
        assert np.array_equal(run.output.reshape(mask.shape) != 0, mask), run.arrangement.name


@pytest.mark.parametrize("tuning", TUNINGS, ids=lambda tuning: tuning.model.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_samples(device: Device, shape: Shape, tuning: Tuning) -> None:
    count = 9
    mask = np.repeat(mask_of(Shape(1), 0.4, count=count), shape.elements, axis=1)
    kept = mask[:, 0] > 0
    assert 0 < kept.sum() < count
    report = run_layer_contract(
        device,
        StochasticDepth(0.4),
        [shape],
        reference_forward=lambda inputs, parameters: masked.dropout(inputs[0], mask),
        reference_backward=lambda inputs, parameters, delta: ([masked.dropout_backward(inputs[0], mask, delta)], {}),
        shared={"step": step_array()},
        count=count,
        relative=1e-6,
        absolute=1e-6,
        ordinal=5,
        tuning=tuning,
        arrangements=arrangements_of(shape, tuning),
    )
    for run in report.runs.values():
        assert np.array_equal((run.output != 0).reshape(count, -1).all(axis=1), kept), run.arrangement.name


@pytest.mark.parametrize("rate", [0, 0.1, 0.999999])
def test_rates(device: Device, rate: float) -> None:
    report = contract(device, Shape(3, 4, 5), rate, tuning_for(kind_of(device)), count=1, arrangements=["tight"])
    if rate == 0:
        assert np.all(report.runs["tight"].output != 0)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_any_number_of_lanes(device: Device, lanes: int) -> None:
    kernels = ("dropout/forward", "dropout/backward")
    tuning = tuning_for("cpu", {kernel: {"LANES": lanes} for kernel in kernels})
    contract(device, Shape(3, 5, 7), 0.5, tuning, arrangements=["own pitches"])


def test_central_differences(device: Device) -> None:
    check_central_differences(device, Dropout(0.3), [Shape(2, 3, 5)], shared={"step": step_array()})


def test_inference_is_the_input(device: Device) -> None:
    for tuning in TUNINGS:
        report = run_layer_contract(
            device,
            Dropout(0.5),
            [Shape(3, 5, 7)],
            reference_forward=lambda inputs, parameters: inputs[0],
            training=False,
            relative=0,
            absolute=0,
            tuning=tuning,
        )
        assert report.kernels == {"blob/copy"}
        assert any(run.arrangement.by_placement and not run.kernels for run in report.runs.values())


# -- in a model -------------------------------------------------------------------------------------------------------


class Model:
    """Input, perhaps Flatten, and Dropout, on a device."""

    def __init__(self, device: Device, shape: Shape, rate: float, count: int, *, flat: bool = False) -> None:
        join = [layers.Flatten()] if flat else []
        chain = graph.sequential([layers.Input(*shape.dimensions, name="in"), *join, Dropout(rate, name="out")])
        self.ordinal = chain.output.index
        self.plan = planning.make_plan(
            chain,
            count,
            loss=losses.MeanSquaredError(),
            training=True,
            tuning=tuning_for(kind_of(device)),
            input_delta=True,
        )
        self.device = device
        self.executor = Executor(device, self.plan, debug=True)
        slices, parameters = (
            self.plan.request.parameters.slices,
            np.zeros(self.plan.request.parameters.elements, np.float32),
        )
        parameters[slices["in/deviation"].offset :][: shape.units] = 1
        self.executor.write_array("parameters", parameters)
        self.count = count

    def forward(self, samples: FloatArray, step: npt.NDArray[np.uint32]) -> FloatArray:
        self.executor.write_array("samples", samples)
        self.executor.write_array("step", step)
        self.executor.run("forward", self.count)
        return self.executor.read_blob(self.plan.outputs["out"], self.count).reshape(self.count, -1)

    def backward(self, delta: FloatArray) -> FloatArray:
        blob = self.plan.deltas["out"]
        memory = self.executor.memory(blob.storage)
        data = blob.layout.data(memory, self.count)
        data[...] = delta.reshape(data.shape)
        self.device.memory.write(self.executor.buffers[self.plan.placed[blob.storage]], memory)
        self.executor.run("backward", self.count)
        return self.executor.read_blob(self.plan.deltas["in"], self.count).reshape(self.count, -1)


def test_parts_of_a_step_draw_what_the_whole_step_does(device: Device) -> None:
    shape, ones = Shape(3, 5, 7), np.ones((5, 105), np.float32)
    model = Model(device, shape, 0.5, 5)
    mask = dropout.dropout_mask(SEED, 3, model.ordinal, 5, shape.elements, 0.5)
    assert np.array_equal(model.forward(ones, step_array()), mask)
    for first, count in ((0, 3), (3, 2), (1, 3)):
        model.executor.run("forward", Batch(count, first=first))
        output = model.executor.read_blob(model.plan.outputs["out"], count).reshape(count, -1)
        assert np.array_equal(output, mask[first : first + count]), (first, count)


def test_backward_has_the_mask_of_forward_and_neither_stores_it(device: Device) -> None:
    shape = Shape(3, 5, 7)
    model = Model(device, shape, 0.5, 4)
    ones = np.ones((4, shape.elements), np.float32)
    mask = dropout.dropout_mask(SEED, 3, model.ordinal, 4, shape.elements, 0.5)
    assert np.array_equal(model.forward(ones, step_array()), mask)
    assert np.array_equal(model.backward(ones), mask)
    kernels = [call.kernel for _, call in model.plan.calls]
    assert kernels.count("dropout/forward") == kernels.count("dropout/backward") == 1
    assert not model.plan.copies
    arrays = {array.storage for _, call in model.plan.calls for array in call.arrays.values() if not array.persistent}
    assert arrays == set()


def test_seed_step_and_place_in_the_model_change_the_mask(device: Device) -> None:
    shape = Shape(4, 6, 9)
    model = Model(device, shape, 0.5, 2)
    deeper = Model(device, shape, 0.5, 2, flat=True)
    assert model.ordinal != deeper.ordinal
    ones = np.ones((2, shape.elements), np.float32)
    masks = [
        model.forward(ones, step_array()),
        model.forward(ones, step_array(step=4)),
        model.forward(ones, step_array(seed=SEED + 1)),
        model.forward(ones, step_array(seed=SEED + (1 << 32))),
        deeper.forward(ones, step_array()),
    ]
    rows = [row for mask in masks for row in mask]
    for position, row in enumerate(rows):
        for other in rows[:position]:
            # Two masks that know nothing of each other agree in half of 216 values, give or take 7.
            assert 72 < int(np.sum(row == other)) < 144
    assert np.array_equal(model.forward(ones, step_array()), masks[0])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_the_mean_stays(device: Device, rate: float) -> None:
    shape = Shape(10, 30, 33)
    output = Model(device, shape, rate, 4).forward(np.ones((4, shape.elements), np.float32), step_array())
    deviation = np.sqrt(rate / (1 - rate) / output.size)
    assert_close(output.mean(dtype=np.float64), 1.0, relative=0, absolute=4 * deviation, what="mean")


def test_dropped_values_are_0_whatever_they_were(device: Device) -> None:
    shape = Shape.flat(64)
    model = Model(device, shape, 0.5, 1)
    mask = dropout.dropout_mask(SEED, 3, model.ordinal, 1, 64, 0.5)
    infinite = np.where(mask == 0, np.inf, 1.0).astype(np.float32)
    assert np.array_equal(model.forward(infinite, step_array()), mask)


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 2, float("nan"), "0.5", None, True])
def test_wrong_rate(rate: float) -> None:
    with pytest.raises(OptionError, match=r"d1 \(Dropout\): rate must be at least 0 and below 1\. Received rate="):
        Dropout(rate, name="d1")
