"""BatchNorm: forward in training and inference, running statistics, backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers, losses, planning
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.examination.reference import activation, normalization
from blobnet.execution.executor import Executor
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.layers import Activation, BatchNorm
from blobnet.layers import normalization as normalization_layer
from blobnet.layers.activation import ACTIVATIONS
from blobnet.layers.base import Kept, LayerContext, ParameterSpec, Placements
from blobnet.memory.blob import FLOAT32, FloatArray, Shape, StorageType
from blobnet.network import graph
from tests.kinds import kind_of, tuning_for
from tests.layers.arranged import Arrangement
from tests.layers.layer_contract import ContractReport, check_central_differences, run_layer_contract
from tests.reference.compare import assert_close

Arrays = Sequence[npt.NDArray[np.float64]]
Parameters = Mapping[str, npt.NDArray[np.float64]]
#: Devices whose kernels do it in stages, and some that do it by units, which have few values.
WAYS = {
    "cpu": tuning_for("cpu"),
    "gpu": tuning_for("gpu"),
    "cpu, by units": tuning_for("cpu", caches=(1 << 15, 1 << 20)),
    "gpu, by units": tuning_for("gpu"),
}
CPU, GPU, *BY_UNITS = WAYS
#: NOTE: not "by placement, inference": that one compares with the training reference. Inference has its own tests.
IN_TRAINING = ("tight", "one pitch", "own pitches", "own zeros", "by placement (separate 0, delta in place)")
#: With samples: odd planes, more than one step of lanes and more than a GPU's group in a plane, one row, one value.
SHAPES = [
    (Shape(3, 5, 7), 3),
    (Shape(2, 13, 33), 2),
    (Shape(5, 9, 16), 1),
    (Shape(4, 9), 3),
    (Shape(7, 1, 1), 2),
    (Shape(3, 2, 5, 7), 3),
    (Shape(2, 5, 9, 9), 2),
    (Shape.flat(150), 41),
]
TRAINING = [
    "normalization/forward_plane_statistics",
    "normalization/forward_statistics",
    "normalization/forward",
    "normalization/backward_plane_sums",
    "normalization/backward_parameters",
    "normalization/backward_data",
]
#: All of it, a unit a work-group.
TRAINING_BY_UNITS = ["normalization/forward_unit", "normalization/backward_unit"]


@pytest.fixture
def tuning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    monkeypatch.setattr(normalization_layer, "_UNITS_OF_A_CORE", 0)
    if request.param == GPU:
        monkeypatch.setattr(normalization_layer, "_UNIT_VALUES", 0)
    return WAYS[request.param]


every_way = pytest.mark.parametrize("tuning", WAYS, indirect=True)


def kernels_of(tuning: Tuning, shape: Shape) -> list[str]:
    """Those that train a norm."""
    by_units = normalization_layer._UNIT_VALUES if tuning.model.is_simt else tuning.model.caches
    return TRAINING_BY_UNITS if by_units and shape.rank < 3 and shape.positions >= 16 else TRAINING


def contract(
    device: Device,
    layer: BatchNorm,
    shape: Shape,
    tuning: Tuning,
    *,
    inputs: npt.ArrayLike | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    count: int = 3,
    training: bool = True,
    arrangements: Sequence[str | Arrangement] | None = None,
    fused: Sequence[str] = (),
    relative: float = 1e-5,
    absolute: float = 1e-5,
    weights: StorageType = FLOAT32,
) -> ContractReport:
    def train(inputs: Arrays, values: Parameters) -> tuple[npt.NDArray[np.float64], ...]:
        return normalization.batch_norm_training(
            inputs[0], **values, numbers=normalization.Numbers(layer.momentum, layer.epsilon)
        )

    def infer(inputs: Arrays, values: Parameters) -> npt.NDArray[np.float64]:
        return normalization.batch_norm_inference(
            inputs[0],
            **values,
            epsilon=layer.epsilon,
        )

    def backward(
        inputs: Arrays, values: Parameters, delta: npt.NDArray[np.float64]
    ) -> tuple[Arrays, dict[str, npt.NDArray[np.float64]]]:
        input_delta, scale, shift = normalization.batch_norm_backward(
            inputs[0], values["scale"], delta, epsilon=layer.epsilon
        )
        return [input_delta], {"scale": scale, "shift": shift}

    report = run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=(lambda inputs, values: train(inputs, values)[0]) if training else infer,
        reference_backward=backward,
        reference_state=lambda inputs, values: dict(
            zip(("running_mean", "running_variance"), train(inputs, values)[1:], strict=True)
        ),
        inputs=None if inputs is None else [inputs],
        parameters=parameters,
        count=count,
        training=training,
        relative=relative,
        absolute=absolute,
        tuning=tuning,
        weights=weights,
        arrangements=arrangements,
        fused=fused,
    )
    assert len(report.runs) >= len(arrangements or ())
    return report


#: Every arrangement of memory once, then every shape in the most hostile one: each run builds six programs.
EVERY_SHAPE = pytest.mark.parametrize(
    ("shape", "count", "tuning"),
    [(shape, count, CPU) for shape, count in SHAPES]
    + [(shape, count, GPU) for shape, count in SHAPES if shape.units not in (5, 7)]
    + [(shape, count, way) for shape, count in SHAPES[:5] for way in BY_UNITS],
    ids=str,
    indirect=["tuning"],
)


@EVERY_SHAPE
def test_training_contract(device: Device, shape: Shape, count: int, tuning: Tuning) -> None:
    fused = ("relu", "gelu") if shape.rank == 1 else ()
    kernels = kernels_of(tuning, shape)
    everywhere = shape == SHAPES[0][0] and (tuning.model.is_host or kernels != TRAINING)
    arrangements = IN_TRAINING if everywhere else ["own pitches"]
    report = contract(device, BatchNorm(), shape, tuning, count=count, arrangements=arrangements, fused=fused)
    assert report.runs["own pitches"].kernels == kernels


@EVERY_SHAPE
def test_inference_contract(device: Device, shape: Shape, count: int, tuning: Tuning) -> None:
    fused = ("relu", "gelu") if shape.rank == 1 else ()
    everywhere = shape == SHAPES[0][0] and not tuning.model.is_simt
    arrangements = None if everywhere else ["own pitches"]
    layer = BatchNorm(0.3, 0.01)
    report = contract(device, layer, shape, tuning, count=count, training=False, arrangements=arrangements, fused=fused)
    assert report.kernels == {"normalization/forward_inference"}


@every_way
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_any_number_of_lanes_and_cells(device: Device, lanes: int, tuning: Tuning) -> None:
    kernels = TRAINING + TRAINING_BY_UNITS
    overrides = {kernel: dict.fromkeys(kernel_source.load(kernel).tunables, lanes) for kernel in kernels}
    tuning = replace(tuning, model=replace(tuning.model, tunables=overrides))
    contract(device, BatchNorm(), Shape(2, 3, 21), tuning, arrangements=["own pitches"])


@every_way
@pytest.mark.parametrize(
    "function", ["leaky_relu(0.3)", *(name for name in ACTIVATIONS if Activation(name).elementwise)]
)
def test_every_activation_forward_and_backward(device: Device, function: str, tuning: Tuning) -> None:
    report = contract(device, BatchNorm(), Shape(2, 5, 7), tuning, arrangements=[], fused=[function])
    assert report.runs[f"with {function}"].kernels == kernels_of(tuning, Shape(2, 5, 7))
    assert report.runs[f"with {function}"].gradients


@every_way
@pytest.mark.parametrize("training", [True, False], ids="training={}".format)
def test_residual_and_activation(device: Device, training: bool, tuning: Tuning) -> None:
    kind = Arrangement("with a residual", training=training, residual=True, activation="relu6")
    report = contract(device, BatchNorm(), Shape(3, 9, 8), tuning, training=training, arrangements=[kind], fused=())
    assert report.runs[kind.name].calls["forward"][-1].macros["HAS_RESIDUAL"] == 1


@pytest.mark.parametrize(("momentum", "epsilon"), [(0, 1), (1, 1e-3), (0.01, 1e-8)])
def test_momentum_and_epsilon(device: Device, momentum: float, epsilon: float) -> None:
    contract(device, BatchNorm(momentum, epsilon), Shape(3, 3, 5), tuning_for(kind_of(device)), arrangements=["tight"])


@every_way
@pytest.mark.parametrize("deviation", [1.0, 0.01])
def test_a_mean_far_larger_than_the_deviation(device: Device, deviation: float, tuning: Tuning) -> None:
    # NOTE: float32 holds 1000 to 6e-5: the mean's own rounding would be an error of 0.3 % of the smaller deviation.
    noise = np.random.default_rng(7).standard_normal((4, 3, 11, 13))
    offsets = np.array([1000.0, -1000.0, 0.0]).reshape(1, 3, 1, 1)
    values = (offsets + deviation * noise).astype(np.float32)
    layer = BatchNorm(epsilon=1e-10)
    contract(
        device,
        layer,
        Shape(3, 11, 13),
        tuning,
        inputs=values,
        count=4,
        arrangements=["tight"],
        relative=2e-5,
        absolute=2e-5 / deviation**0.5,
    )


@every_way
def test_sample_means_far_apart(device: Device, tuning: Tuning) -> None:
    noise = np.random.default_rng(8).standard_normal((4, 2, 5, 9))
    values = noise + np.array([0.0, 1e4, -3e4, 10.0]).reshape(4, 1, 1, 1)
    contract(device, BatchNorm(), Shape(2, 5, 9), tuning, inputs=values, count=4, relative=2e-5, arrangements=["tight"])


@every_way
def test_an_outlier_among_the_cells_that_distances_are_from(device: Device, tuning: Tuning) -> None:
    values = 0.01 * np.random.default_rng(9).standard_normal((1, 2, 40, 52))
    values[0, :, 10, 13] = 100
    contract(device, BatchNorm(), Shape(2, 40, 52), tuning, inputs=values, count=1, arrangements=["tight"])


@pytest.mark.parametrize(
    ("shape", "tuning"), [(Shape(3, 1, 1), CPU), (Shape.flat(5), GPU)], ids=["cpu", "gpu"], indirect=["tuning"]
)
def test_a_single_value_has_variance_0(device: Device, shape: Shape, tuning: Tuning) -> None:
    start = {"running_variance": np.full(shape.units, 2.0), "shift": np.arange(shape.units)}
    report = contract(device, BatchNorm(), shape, tuning, parameters=start, count=1, arrangements=["tight"])
    assert np.array_equal(report.runs["tight"].output.reshape(-1), np.arange(shape.units))
    assert np.all(report.runs["tight"].input_deltas[0] == 0)


@every_way
def test_a_constant_unit_is_shifted_only(device: Device, tuning: Tuning) -> None:
    values = np.broadcast_to(np.array([0.1, -3e5, 0.0]).reshape(1, 3, 1, 1), (3, 3, 7, 5))
    layer, shape = BatchNorm(epsilon=1e-30), Shape(3, 7, 5)
    contract(device, layer, shape, tuning, inputs=values, training=False, arrangements=["tight"])
    report = run_layer_contract(
        device,
        BatchNorm(epsilon=1e-30),
        [Shape(3, 7, 5)],
        reference_forward=lambda inputs, values: np.broadcast_to(values["shift"].reshape(1, 3, 1, 1), inputs[0].shape),
        reference_state=lambda inputs, values: {
            "running_mean": 0.9 * values["running_mean"] + 0.1 * inputs[0][0, :, 0, 0],
            "running_variance": 0.9 * values["running_variance"],
        },
        inputs=[values],
        relative=1e-6,
        absolute=1e-6,
        tuning=tuning,
        arrangements=["tight"],
    )
    assert np.all(np.isfinite(report.runs["tight"].output))


@every_way
def test_central_differences(device: Device, tuning: Tuning) -> None:
    check_central_differences(device, BatchNorm(), [Shape(3, 4, 5)], count=3, tuning=tuning)


# -- frozen -----------------------------------------------------------------------------------------------------------


class _Frozen(BatchNorm):
    """A norm as a plan for training runs it where scale and shift are frozen."""

    kept = Kept()
    recomputes_output = False

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return tuple(replace(spec, trainable=False) for spec in super().parameters(inputs))

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return super().placement(inputs, False)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return super().forward(replace(site, training=False))

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        return []

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return super().backward_data(replace(site, training=False))


@pytest.mark.parametrize(
    ("shape", "count", "tuning"),
    [(SHAPES[0][0], SHAPES[0][1], CPU), (SHAPES[0][0], SHAPES[0][1], GPU), (Shape(9), 3, CPU)],
    ids=str,
    indirect=["tuning"],
)
def test_frozen_contract(device: Device, shape: Shape, count: int, tuning: Tuning) -> None:
    """Statistics and gradients are constants: the delta is multiplied by scale / deviation, in place and added too."""
    layer = _Frozen(0.3, 0.01)

    def infer(inputs: Arrays, values: Parameters) -> npt.NDArray[np.float64]:
        return normalization.batch_norm_inference(inputs[0], **values, epsilon=layer.epsilon)

    def backward(
        inputs: Arrays, values: Parameters, delta: npt.NDArray[np.float64]
    ) -> tuple[Arrays, dict[str, npt.NDArray[np.float64]]]:
        factor = values["scale"] / np.sqrt(values["running_variance"] + layer.epsilon)
        return [delta * factor.reshape(1, -1, 1, 1)], {}

    report = run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=infer,
        reference_backward=backward,
        count=count,
        relative=1e-5,
        absolute=1e-5,
        tuning=tuning,
        fused=(),
    )
    assert report.kernels == {"normalization/forward_inference", "normalization/backward_inference"}
    assert "by placement (in place 0, delta in place)" in report.runs


# -- in a model -------------------------------------------------------------------------------------------------------


class Trained:
    """Input, BatchNorm and an activation on a device, with the parameters that a new model has."""

    def __init__(self, device: Device, function: str, *, training: bool, momentum: float = 0.1) -> None:
        nodes = [layers.Input(3, 5, 7, name="in"), BatchNorm(momentum, name="norm")]
        chain = graph.sequential([*nodes, layers.Activation(function, name="out")])
        self.plan = planning.make_plan(
            chain,
            4,
            loss=losses.MeanSquaredError() if training else None,
            training=training,
            tuning=tuning_for(kind_of(device)),
            input_delta=training,
        )
        self.device = device
        self.executor = Executor(device, self.plan, debug=True)
        for name, spec in chain.named_parameters.items():
            self.set(name, np.full(spec.shape, float(spec.initializer == "ones")))

    def set(self, name: str, values: npt.ArrayLike) -> None:
        offset = 4 * self.plan.request.parameters.slices[name].offset
        self.device.memory.write(self.executor.buffers["parameters"], np.asarray(values, np.float32), offset)

    def get(self, name: str, buffer: str = "parameters") -> FloatArray:
        piece = self.plan.request.parameters.slices[name]
        values: FloatArray = self.device.memory.read(
            self.executor.buffers[buffer], piece.elements, offset=4 * piece.offset
        )
        return values

    def forward(self, samples: FloatArray) -> FloatArray:
        self.executor.write_array("samples", samples)
        self.executor.run("forward", len(samples))
        return self.executor.read_blob(self.plan.outputs["out"], len(samples))


def test_running_statistics_over_several_steps(device: Device) -> None:
    generator = np.random.default_rng(3)
    model = Trained(device, "relu", training=True, momentum=0.3)
    mean, variance = np.zeros(3), np.ones(3)
    for count in (4, 4, 1, 3):
        samples = (2 + 3 * generator.standard_normal((count, 3, 5, 7))).astype(np.float32)
        output = model.forward(samples)
        expected, mean, variance = normalization.batch_norm_training(
            samples.astype(float), np.ones(3), np.zeros(3), mean, variance, normalization.Numbers(0.3)
        )
        assert_close(output, np.maximum(expected, 0), relative=1e-5, absolute=1e-5, what="output")
        assert_close(model.get("norm/running_mean"), mean, relative=1e-5, absolute=1e-6, what="running mean")
        assert_close(
            model.get("norm/running_variance"), variance, relative=1e-5, absolute=1e-6, what="running variance"
        )
    inference = Trained(device, "relu", training=False)
    for name in ("running_mean", "running_variance"):
        inference.set(f"norm/{name}", model.get(f"norm/{name}"))
    expected = normalization.batch_norm_inference(samples.astype(float), np.ones(3), np.zeros(3), mean, variance)
    actual = inference.forward(samples)
    assert_close(actual, np.maximum(expected, 0), relative=1e-5, absolute=1e-5, what="inference")


@pytest.mark.parametrize("function", ["relu", "sigmoid", "gelu"])
def test_with_an_activation_behind_it(device: Device, function: str) -> None:
    generator = np.random.default_rng(4)
    samples, delta = generator.standard_normal((2, 3, 3, 5, 7)).astype(np.float32)
    forward, backward = activation.named(function)
    normalized = normalization.batch_norm_training(samples, np.ones(3), np.zeros(3), np.zeros(3), np.ones(3))[0]
    model = Trained(device, function, training=True)
    assert_close(model.forward(samples), forward(normalized), relative=1e-5, absolute=1e-5, what="output")
    blob = model.plan.deltas["out"]
    memory = model.executor.memory(blob.storage)
    blob.layout.data(memory, 3)[...] = delta
    model.device.memory.write(model.executor.buffers[model.plan.placed[blob.storage]], memory)
    model.executor.run("backward", 3)
    input_delta, scale, shift = normalization.batch_norm_backward(samples, np.ones(3), backward(normalized, delta))
    actual = model.executor.read_blob(model.plan.deltas["in"], 3)
    assert_close(actual, input_delta, relative=1e-5, absolute=1e-5, what="input delta")
    assert_close(model.get("norm/scale", "gradients"), scale, relative=1e-5, absolute=1e-5, what="scale")
    assert_close(model.get("norm/shift", "gradients"), shift, relative=1e-5, absolute=1e-5, what="shift")


def test_inference_runs_in_place_and_takes_the_activation_with_it(device: Device) -> None:
    plan = Trained(device, "gelu", training=False).plan
    assert [call.kernel for call in plan.phase("forward")] == ["input/forward", "normalization/forward_inference"]
    assert len({blob.storage for blob in plan.outputs.values()}) == 1
    assert plan.calls[-1][1].macros["IN_PLACE"] == 1


# -- arguments --------------------------------------------------------------------------------------------------------


def test_parameters() -> None:
    specs = {spec.name: spec for spec in BatchNorm().parameters([Shape(5, 2, 3)])}
    assert {name: spec.shape for name, spec in specs.items()} == dict.fromkeys(
        ("scale", "shift", "running_mean", "running_variance"), (5,)
    )
    assert [spec.name for spec in specs.values() if spec.trainable] == ["scale", "shift"]
    assert not any(spec.decayed for spec in specs.values())
    assert [spec.initializer for spec in specs.values()] == ["ones", "zeros", "zeros", "ones"]


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan"), "0.1", True])
def test_wrong_momentum(momentum: float) -> None:
    with pytest.raises(OptionError, match=r"n1 \(BatchNorm\): momentum must be from 0 to 1\. Received momentum="):
        BatchNorm(momentum, name="n1")


@pytest.mark.parametrize("epsilon", [0, -1e-5, 1e-40, float("inf"), float("nan"), None])
def test_wrong_epsilon(epsilon: float) -> None:
    rule = r"BatchNorm: epsilon must be a finite number of at least 1e-30\. Received epsilon="
    with pytest.raises(OptionError, match=rule):
        BatchNorm(epsilon=epsilon)


@pytest.mark.parametrize("shape", [Shape.flat(300), Shape(70, 1, 1), Shape(3, 1, 2), Shape(64, 28, 28)], ids=str)
def test_a_gpu_group_has_at_most_64_work_items_along_the_units(shape: Shape) -> None:
    # NVIDIA's limit.
    for training in (True, False):
        chain = graph.sequential([layers.Input(*shape.dimensions), BatchNorm(), layers.Dropout(0.5)])
        loss = losses.MeanSquaredError() if training else None
        plan = planning.make_plan(
            chain, 2, loss=loss, training=training, tuning=tuning_for("gpu"), input_delta=training
        )
        sizes = [call.local_size for _, call in plan.calls if call.kernel.startswith(("normalization", "dropout"))]
        assert sizes
        most = tuning_for("gpu").model.group_size
        assert all(size and size[2] <= 64 and 1 <= size[0] * size[1] * size[2] <= most for size in sizes)
