"""Files that blobnet writes as ONNX, run by ONNX's own runtime."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.command_line.model_argument import known_models
from blobnet.errors import FileError, OptionError
from blobnet.layers.activation import ACTIVATIONS
from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from blobnet.onnx.forms import FORMS
from tests.bench.torch_twin import Twin
from tests.interop.networks import STOOD_FOR, random_weights, samples, small_network
from tests.small_graphs import KNOWN_GRAPHS, random_graph
from tests.torch_graphs import own_kinds

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

#: Operators that are written and not read: sums of products over any indexes.
NOT_LOADED = {"Einsum"}
#: Layers that compute nothing when a network predicts, which ``load`` may leave out.
NAMELESS = {"Constant", "Dropout", "Flatten", "StochasticDepth"}
LINEAR = layers.Activation("linear")
#: Axes that hold others: units in another order, as shuffled groups have them, and planes in blocks.
SHUFFLED = """function (I[N, 12, H, W], A[12]) -> (O) {
  O[n, 4*g + u, y, x : N, 12, H, W] = +(I[n, g + 3*u, y, x] * A[4*g + u]), g < 3, u < 4;
}"""
BLOCKS = """function (I[N, C, 6, W]) -> (O) {
  O[n, y, b, 3*c + x : N, 2, 3, 12] = +(I[n, c, 3*y + b, x]), b < 3, x < 3;
}"""
#: Of six blocks of four the second and third, of each the odd ones.
PART_OF_BLOCKS = """function (I[N, 24, W]) -> (O) {
  O[n, 2*a + b, x : N, 4, W] = >(I[n, 4*a + 2*b + 5, x]), a < 2, b < 2;
}"""
BACKWARDS = "function (I[N, C, 6]) -> (O) { O[n, c, x : N, C, 3] = +(I[n, C - 1 - c, 4 - 2*x]); }"
#: A statement for each function of single values.
FUNCTIONS = """function (I[N, C, X]) -> (O) {
  A = abs(I) + 1; B = I < 0 ? exp(I) : log(A); E = I >= 1 ? erf(I) : sin(I) * cos(I); D = sqrt(A) - pow(A, 0.5) / 3;
  F = max(floor(I), min(ceil(I), tanh(I))); G = expm1(I) + log1p(A); H = round(3 * I) - sigmoid(detach(I)) * (I != 2);
  K = (I <= 0) + (I > 1) * (I == I);
  O = A + B + E + D + F + G + H + K;
}"""
MODULATED = "function (I[N, C, ...], S[C]) -> (O) { O[n, c, ...] = +(I[n, c, ...] * (1 + S[c])); }"
SUMS = "function (I[N, C, Y, X], W[C, 5]) -> (O) { O[n, x, f] = +(W[c, f] * I[n, c, y, x]); }"
PARTS = """function (I[N, C, Y, X]) -> (O) {
  A[n, c + 2, y, x : N, 9, 3, 8] = +(I[n, c, 2*y + 1, x] * I[n, 3, 0, x]);
  O[n, c, y, x] = +(A[n, c, y, x] + A[n, 4, y, 1]);
}"""
MAXIMA = """function (I[N, C, X], J[N, C, X]) -> (O) {
  M[n, 0, c : N, 1, C] = >(I[n, c, x]);
  O[n, x, c] = +(I[n, c, x] * J[n, c, x] + M[n, 0, c]);
}"""
#: Windows: with zeros beyond the edges and weights, maxima that these are none of, three indexes in an axis, and a sum
#: of what is not 0 there; and what constraints leave out.
WINDOWS = "function (I[N, C, X], W[F, C, 3]) -> (O) { O[n, f, x : N, F, X] = +(I[n, c, x + 2*k - 2] * W[f, c, k]); }"
WIDE = """function (I[N, C, Y, X]) -> (O) {
  O[n, c, y, x : N, C, Y, X - 3] = >(I[n, c, y + 2*j - 4, 2*x + 3*k - 1]), j < 5, k < 3;
}"""
THREE = "function (I[N, C, X]) -> (O) { O[n, c, x : N, C, 3] = <(I[n, c, 2*x + a + 3*b - 1]), a < 3, b < 2; }"
POWERS = "function (I[N, C, X]) -> (O) { O[n, c, x : N, C, X] = +(exp(I[n, c, x + k - 1]) * (2 + k)), k < 3; }"
TRIANGLE = "function (I[N, X, Y]) -> (O2) { O[n, x, y] = +(I[n, x, y]), x - y < X; S[n, x] = *(I[n, x, y]), y - x < 3; "
TRIANGLE += "O2[n, x, y] = +(O[n, x, y] + S[n, x] * (x + 2*y)); }"
#: For each kind of layer, layers and the shapes of their inputs.
CASES: dict[str, list[tuple[Layer, Sequence[tuple[int, ...]]]]] = {
    "Activation": [
        *((layers.Activation(name), [(3, 4, 5)]) for name in ACTIVATIONS),
        (layers.Activation("softmax"), [(7,)]),
        (layers.Activation("relu(1.5)"), [(3, 6)]),
        (layers.Activation("leaky_relu(0.3)"), [(3, 6)]),
    ],
    "AdaptiveAveragePool": [
        (layers.AdaptiveAveragePool((3, 2)), [(2, 7, 6)]),
        (layers.AdaptiveAveragePool(2), [(2, 8, 6)]),
        (layers.AdaptiveAveragePool(4), [(2, 11)]),
    ],
    "AdaptiveMaxPool": [
        (layers.AdaptiveMaxPool((3, 5)), [(2, 7, 6)]),
        (layers.AdaptiveMaxPool(2), [(2, 4, 6, 8)]),
    ],
    "Add": [
        (layers.Add(), [(3, 4, 5), (3, 4, 5), (3, 4, 5)]),
        (layers.Add(), [(3, 4, 5), (3,), (1, 4, 5)]),
    ],
    "AveragePool1D": [(layers.AveragePool1D(3, 2, padding=(1, 0)), [(2, 9)])],
    "AveragePool2D": [
        (layers.AveragePool2D(3, 2, padding=((1, 0), (0, 2))), [(2, 9, 8)]),
        (layers.AveragePool2D(3, 1, padding="same", count_include_pad=False), [(2, 5, 6)]),
    ],
    "AveragePool3D": [(layers.AveragePool3D(2, padding=1, count_include_pad=False), [(2, 5, 4, 7)])],
    "BatchNorm": [(layers.BatchNorm(epsilon=1e-3), [(3, 4, 5)]), (layers.BatchNorm(), [(6,)])],
    "Concat": [(layers.Concat(), [(2, 4, 5), (3, 4, 5), (1, 4, 5)])],
    "Constant": [(layers.Concat(), [(2, 4, 5)])],
    "Contraction": [
        (layers.Contraction(MODULATED), [(3, 4)]),
        (layers.Contraction(SUMS), [(3, 4, 2)]),
        (layers.Contraction(MAXIMA), [(3, 4), (3, 4)]),
        (layers.Contraction(FUNCTIONS), [(3, 4)]),
        (layers.Contraction(PARTS), [(5, 7, 6)]),
        (layers.Contraction(SHUFFLED), [(12, 2, 3)]),
        (layers.Contraction(BLOCKS), [(4, 6, 3)]),
        (layers.Contraction(PART_OF_BLOCKS), [(24, 3)]),
        (layers.Contraction(BACKWARDS), [(7, 6)]),
        (layers.Contraction(WINDOWS, sizes={"F": 4}), [(3, 8)]),
        (layers.Contraction(WIDE), [(2, 5, 7)]),
        (layers.Contraction(THREE), [(2, 9)]),
        (layers.Contraction(POWERS), [(2, 6)]),
        (layers.Contraction(TRIANGLE), [(4, 5)]),
    ],
    "Conv1D": [(layers.Conv1D(4, 3, stride=2, padding=(2, 1), groups=2), [(2, 11)])],
    "Conv2D": [
        (layers.Conv2D(4, (3, 2), stride=(1, 2), padding="same"), [(3, 7, 9)]),
        (layers.Conv2D(6, 3, padding=((1, 0), (2, 1)), dilation=2, groups=3, bias=False), [(3, 8, 9)]),
        (layers.Conv2D(4, 3, padding=1, bias="position", activation="silu"), [(3, 5, 4)]),
    ],
    "Conv3D": [(layers.Conv3D(4, (2, 3, 1), stride=2, padding=1, groups=2), [(2, 5, 6, 7)])],
    "ConvTranspose1D": [(layers.ConvTranspose1D(3, 4, stride=2, padding=1, output_padding=1), [(2, 6)])],
    "ConvTranspose2D": [
        (layers.ConvTranspose2D(4, (3, 2), stride=(2, 3), padding=(1, 0), groups=2), [(4, 5, 4)]),
        (layers.ConvTranspose2D(4, 3, dilation=2, bias=False, activation="relu"), [(3, 4, 5)]),
    ],
    "ConvTranspose3D": [(layers.ConvTranspose3D(2, 2, stride=2), [(3, 2, 3, 4)])],
    "Dense": [(layers.Dense(5), [(7,)]), (layers.Dense(5, bias=False, activation="tanh"), [(3, 4, 2)])],
    "DepthToSpace": [(layers.DepthToSpace(2), [(12, 3, 2)])],
    "Dropout": [(layers.Dropout(0.5), [(3, 4, 5)])],
    "Embedding": [(layers.Embedding(4, 3), [(6,)]), (layers.Embedding(4, 3), [(1, 6)])],
    "Flatten": [(layers.Flatten(), [(3, 4, 5)]), (layers.Flatten(), [(6,)])],
    "GRU": [
        (layers.GRU(4), [(3, 5)]),
        (layers.GRU(4, bidirectional=True), [(3, 5)]),
        (layers.GRU(4, bias=False, bidirectional=True, return_sequences=False), [(3, 5)]),
        (layers.GRU(4, reverse=True, return_sequences=False), [(3, 5)]),
    ],
    "GlobalAveragePool": [(layers.GlobalAveragePool(), [(3, 4, 5)]), (layers.GlobalAveragePool(), [(3, 7)])],
    "GlobalMaxPool": [(layers.GlobalMaxPool(), [(3, 4, 5)])],
    "GroupNorm": [
        (layers.GroupNorm(3), [(6, 4, 5)]),
        (layers.GroupNorm(2, affine=False, epsilon=1e-2), [(4, 7)]),
        (layers.GroupNorm(2), [(6,)]),
    ],
    "Input": [(layers.Flatten(), [(3, 4, 5)]), (layers.Activation("linear"), [(6,)])],
    "InstanceNorm": [(layers.InstanceNorm(), [(3, 4, 5)]), (layers.InstanceNorm(affine=False), [(3, 9)])],
    "Interleave": [(layers.Interleave(), [(3, 4, 5), (3, 4, 5)]), (layers.Interleave(), [(3,), (3,)])],
    "LSTM": [
        (layers.LSTM(4), [(3, 5)]),
        (layers.LSTM(4, bidirectional=True), [(3, 5)]),
        (layers.LSTM(4, bias=False, bidirectional=True, return_sequences=False), [(3, 5)]),
        (layers.LSTM(4, reverse=True, return_sequences=False), [(3, 5)]),
    ],
    "LayerNorm": [
        (layers.LayerNorm(), [(6, 4, 5)]),
        (layers.LayerNorm(affine=False, epsilon=1e-2), [(6, 5)]),
        (layers.LayerNorm(), [(6,)]),
    ],
    "LocalResponseNorm": [
        (layers.LocalResponseNorm(5, alpha=0.5, beta=0.6, bias=2.0), [(7, 4, 5)]),
        (layers.LocalResponseNorm(4, alpha=0.5), [(7, 4, 5)]),
        (layers.LocalResponseNorm(3, alpha=0.5), [(7, 6)]),
    ],
    "MatMul": [
        (layers.MatMul(), [(3, 4, 5), (3, 5, 2)]),
        (layers.MatMul(transpose_first=True), [(5, 4), (3, 5, 2)]),
        (layers.MatMul(transpose_second=True), [(3, 4, 5), (1, 2, 5)]),
    ],
    "MaxPool1D": [(layers.MaxPool1D(3, 2, padding=1), [(2, 8)])],
    "MaxPool2D": [
        (layers.MaxPool2D((3, 2), (2, 1), padding="same"), [(2, 7, 8)]),
        *(
            (layers.MaxPool2D(3, 2, padding, ceil_mode=True), [(2, size, 9)])
            for padding in (0, 1)
            for size in (6, 7, 8)
        ),
    ],
    "MaxPool3D": [(layers.MaxPool3D(2, 1, padding=((1, 0), (0, 1), (0, 0))), [(2, 3, 4, 5)])],
    "MultiHeadAttention": [
        (layers.MultiHeadAttention(2), [(6, 5)]),
        (layers.MultiHeadAttention(3, causal=True, bias=False), [(6, 5)]),
        (layers.MultiHeadAttention(2), [(6, 5), (4, 7)]),
        (layers.MultiHeadAttention(2), [(6, 5), (4, 7), (3, 7)]),
    ],
    "Multiply": [(layers.Multiply(), [(3,), (3, 4, 5), (3, 1, 5)])],
    "PReLU": [(layers.PReLU(), [(3, 4, 5)]), (layers.PReLU(), [(6,)])],
    "Pad": [(layers.Pad(1), [(2, 3, 4)]), (layers.Pad(((1, 2), (0, 3))), [(2, 3, 4)]), (layers.Pad((2,)), [(2, 5)])],
    "Permute": [(layers.Permute((2, 0, 1)), [(2, 3, 4)]), (layers.Permute((1, 0)), [(2, 3)])],
    "Reshape": [(layers.Reshape((4, -1)), [(2, 6, 3)])],
    "Scale": [(layers.Scale(), [(3, 4, 5)]), (layers.Scale(), [(6,)])],
    "Slice": [
        (layers.Slice(((1, 3),)), [(5, 4, 3)]),
        (layers.Slice((None, (-3, None, 2), (None, -1))), [(2, 7, 5)]),
    ],
    "SpaceToDepth": [(layers.SpaceToDepth(2), [(3, 4, 6)])],
    "SqueezeExcite": [(layers.SqueezeExcite(2), [(6, 4, 5)])],
    "Standardize": [(layers.Standardize(), [(3, 4, 5)])],
    "StochasticDepth": [(layers.StochasticDepth(0.5), [(3, 4, 5)])],
    "Tokens": [(layers.Tokens(), [(3, 2, 4)])],
    "Upsample": [
        (layers.Upsample((2, 3)), [(2, 3, 4)]),
        (layers.Upsample((2, 3), mode="bilinear"), [(2, 5, 4)]),
        (layers.Upsample(3, mode="bilinear"), [(2, 5)]),
    ],
}


def test_every_kind_of_layer_is_tested() -> None:
    """Another layer needs a case here, and with it a form."""
    assert set(CASES) == own_kinds()


def of_layer(kind: str, layer: Layer, shapes: Sequence[tuple[int, ...]]) -> bn.Model:
    """The layer behind inputs of these shapes."""
    nodes = {f"x{index}": layers.Input.of(Shape(*shape))() for index, shape in enumerate(shapes)}
    behind = list(nodes.values())
    if kind == "Constant":
        behind.append(layers.Constant(np.random.default_rng(1).normal(size=shapes[0]))())
    if kind == "Standardize":
        units = shapes[0][0]
        weights = {spec.name: np.ones(units, np.float32) for spec in layer.parameters([behind[0].shape])}
        behind = [layers.Activation("linear")(behind[0])]
        layer = layers.Standardize(name="standardize")
        return bn.Model(nodes, {"y": replace(layer(behind[0]), weights=weights)})
    return bn.Model(nodes, {"y": layer(behind)})


def run_onnx(path: Path, x: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    return session.run(None, x if isinstance(x, dict) else {names[0]: x})


def predicted(model: bn.Model, x: dict[str, Any], device: Any) -> list[Any]:
    """What the model gives for samples, output by output."""
    found = model.predict(x if len(x) > 1 else next(iter(x.values())), device=device)
    return list(found.values()) if isinstance(found, dict) else [found]


def check(model: bn.Model, path: Path, x: dict[str, Any], device: Any) -> Any:
    """Writes the model; ONNX's runtime, and what blobnet reads of the file, must give what it predicts."""
    proto = check_saved(model, path, x, expected := predicted(model, x, device))
    if not any(node.op_type in NOT_LOADED for node in proto.graph.node):
        loaded = check_loaded(path, model)
        assert_same(predicted(loaded, renamed(x, model, loaded), device), expected)
    return proto


def check_saved(model: bn.Model, path: Path, x: dict[str, Any], expected: list[Any]) -> Any:
    """Writes the model; ONNX's checker takes the file, and its runtime gives what is expected."""
    bn.onnx.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    assert_same(run_onnx(path, x), expected)
    return onnx.load(path)


def check_loaded(path: Path, saved: bn.Model) -> bn.Model:
    """What blobnet reads of the file has the names of the classes, and of all layers that compute something."""
    model = bn.onnx.load(path)
    assert model.class_names == saved.class_names
    found = {vertex.layer.name for vertex in model.graph.vertices}
    for vertex in saved.graph.vertices:
        layer, is_input = vertex.layer, vertex.layer.name in saved.graph.inputs
        is_nothing = layer.kind in NAMELESS or layer == replace(LINEAR, name=layer.name)
        is_nothing |= layer.kind == "Slice" and [vertex.shape] == saved.graph.input_shapes(vertex)
        assert layer.name in found or is_nothing or is_input, layer
    return model


def renamed(x: dict[str, Any], saved: bn.Model, loaded: bn.Model) -> dict[str, Any]:
    """Samples by the names that the inputs have in a loaded model."""
    return {ours: x[name] for name, ours in zip(saved.graph.inputs, loaded.graph.inputs, strict=True)}


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for values, wanted in zip(found, expected, strict=True):
        assert values.shape == wanted.shape
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(values, wanted, atol=1e-4 * scale, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, cases in CASES.items() for number in range(len(cases))]
)
def test_layers(device: Any, tmp_path: Path, kind: str, number: int) -> None:
    layer, shapes = CASES[kind][number]
    model = of_layer(kind, layer, shapes)
    random_weights(model)
    assert any(vertex.layer.kind == kind for vertex in model.graph.vertices)
    x = samples(model)
    if kind == "Embedding":  # Of whole numbers.
        model.set_normalization(0, 1)
        x = {name: np.minimum(np.abs(np.round(values)), layer.count - 1) for name, values in x.items()}
    proto = check(model, tmp_path / "model.onnx", x, device)
    assert [item.name for item in proto.graph.input] == list(model.graph.inputs)
    assert [item.name for item in proto.graph.output] == ["y"]
    shape = proto.graph.input[0].type.tensor_type.shape
    assert [axis.dim_param or axis.dim_value for axis in shape.dim] == ["N", *shapes[0]]
    # What is trained is there by its name.
    arrays = {item.name for item in proto.graph.initializer}
    assert all(any(item.startswith(name) for item in arrays) for name in model.graph.trainable)


GRAPHS = {**KNOWN_GRAPHS, **{f"random {seed}": partial(random_graph, seed) for seed in range(5)}}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(device: Any, tmp_path: Path, name: str) -> None:
    nodes = GRAPHS[name]().nodes({name: np.zeros(spec.shape) for name, spec in GRAPHS[name]().named_parameters.items()})
    model = bn.Model(next(iter(nodes.values())), list(nodes.values())[-1])
    random_weights(model)
    check(model, tmp_path / "model.onnx", samples(model), device)


#: Networks with a layer that PyTorch has no counterpart of, or with several inputs.
NOT_IN_PYTORCH = {"mobilenet_v1", "resnet20", "unet", "unet_1d"}


def in_pytorch(model: bn.Model, x: dict[str, Any]) -> list[Any]:
    """What the same layers give in PyTorch."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return [Twin(model).module.eval()(torch.tensor(next(iter(x.values())))).numpy()]


@pytest.mark.parametrize("name", [name for name in known_models() if name not in STOOD_FOR])
@pytest.mark.long
def test_networks(device: Any, tmp_path: Path, name: str) -> None:
    """Against PyTorch's layers: the kernels of each, built for nothing else, take most of the time of a test.

    What is read of a file is written once more, and run.
    """
    model = small_network(name)
    random = np.random.default_rng(0)
    statistics = {name for name, spec in model.graph.named_parameters.items() if not spec.trainable}
    model.set_weights({item: random.uniform(0.5, 1.5, model.graph.named_parameters[item].shape) for item in statistics})
    path, x = tmp_path / "model.onnx", samples(model, 2)
    expected = predicted(model, x, device) if name in NOT_IN_PYTORCH else in_pytorch(model, x)
    check_saved(model, path, x, expected)
    loaded = check_loaded(path, model)
    check_saved(loaded, path, renamed(x, model, loaded), expected)


def test_several_inputs_outputs_and_shared_layers(device: Any, tmp_path: Path) -> None:
    """Names that meet, a layer in two places, an output that others read, and one that is an input's."""
    left, right = layers.Input(2, 5, 6, name="left")(), layers.Input(2, 5, 6)()
    shared = layers.Conv2D(3, 3, name="image", activation="relu")
    nodes = [shared(left), shared(right)]
    gates = layers.Dense(3, name="y")(nodes[0])
    model = bn.Model({"image": left, "other": right}, {"gates": gates, "image": gates * nodes[1], "raw": left})
    random_weights(model)
    proto = check(model, tmp_path / "model.onnx", samples(model), device)
    assert [item.name for item in proto.graph.output] == ["gates", "image_output", "raw"]
    assert sorted(item.name for item in proto.graph.initializer if "weight" in item.name) == [
        "image/weight",
        "y/weight",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True, "bias": False},
        {"bidirectional": True, "return_sequences": False},
        {"reverse": True},
        {"return_sequences": False, "bias": False},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU], ids=lambda kind: kind.__name__)
def test_series_of_several_lengths(device: Any, tmp_path: Path, kind: Any, options: dict[str, Any]) -> None:
    """As sequence_lens, which onnxruntime follows, and which are read again."""
    series, lengths = layers.Input(3, width=5, name="series")(), layers.Input(1, name="lengths")()
    model = bn.Model({"series": series, "lengths": lengths}, kind(4, **options)(series, lengths))
    random_weights(model)
    x = {**samples(model, 4), "lengths": np.array([[5], [1], [3], [4]], np.float32)}
    model.set_normalization([0], [1], input="lengths")
    check(model, tmp_path / "model.onnx", x, device)


def test_samples_are_normalised_and_classes_have_names(device: Any, tmp_path: Path) -> None:
    model = bn.Sequential(
        [layers.Input(3, 4, 4, name="input"), layers.Dense(2, name="logits")], class_names=["T-shirt", "Stra\u00dfe"]
    )
    x = samples(model)
    plain = [node.op_type for node in check(model, tmp_path / "plain.onnx", x, device).graph.node]
    assert plain == ["Flatten", "Gemm"]
    model.set_normalization([0.5, -1, 2], [3, 1, 0.25])
    proto = check(model, tmp_path / "model.onnx", x, device)
    assert [node.op_type for node in proto.graph.node] == ["Sub", "Div", "Flatten", "Gemm"]
    assert [node.name for node in proto.graph.node][-1] == "logits"
    metadata = {item.key: item.value for item in proto.metadata_props}
    assert json.loads(metadata["class_names"]) == ["T-shirt", "Stra\u00dfe"]
    assert (proto.producer_name, proto.opset_import[0].version) == ("blobnet", 20)


@dataclass(frozen=True)
class Halved(layers.ContractionLayer):
    def function(self, inputs: Sequence[Shape]) -> Any:
        return layers.function("function (I[N, C, ...]) -> (O) { O[n, c, ...] = +(I[n, c, ...] / 2); }", inputs[0])


del Layer.kinds["Halved"]


class Own(Layer):
    """A layer of a user's own, with kernels of its own."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def forward(self, site: Any) -> list[Any]:
        raise NotImplementedError


del Layer.kinds["Own"]
RULE = "the layer must have a form in ONNX, which contractions have where"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            Own(name="mine"),
            "mine (Own): the layer must have a form in ONNX. Received kind=Own. Hint: a model up to the ",
        ),
        (
            layers.Contraction("function (I[N, 4, 4]) -> (O) { O[n, c : N, 4] = +(I[n, c, c]); }", name="line"),
            f"line (Contraction): {RULE} each index moves one axis of what is read or written. Received "
            "statement=O[n, c] = +(I[n, c, c]). Hint: blobnet.onnx.forms.FORMS takes a function",
        ),
        (
            layers.Contraction(
                "function (I[N, C], W[2]) -> (O) { O[n, c + k : N, C + 1] = +(I[n, c] * W[k]), k < 2; }"
            ),
            f"{RULE} each axis that is written moves with one index",
        ),
        (layers.Contraction("function (I[N, C]) -> (O) { O[n, c, x : N, C, 3] = +(I[n, c]); }"), f"{RULE} each index"),
    ],
)
def test_layers_without_a_form(tmp_path: Path, layer: Layer, message: str) -> None:
    sizes = (4, None, 4) if "4, 4" in str(layer) else (4,)
    model = bn.Sequential([layers.Input(*sizes), layer])
    with pytest.raises(OptionError, match=re.escape(message)):
        bn.onnx.save(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_file_is_no_model(tmp_path: Path) -> None:
    rule = (
        r"^onnx\.save: it takes a Model\. Received type=str\. Hint: blobnet\.load\(path\) gives the model in a file\.$"
    )
    with pytest.raises(OptionError, match=rule):
        bn.onnx.save("lenet5.h5", tmp_path / "x.onnx")  # type: ignore[arg-type]


def test_a_layer_of_ones_own(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is a contraction has a form by itself, and one may be given."""
    model = bn.Sequential([layers.Input(3, 4, 5), Halved(name="half"), layers.Dense(2)])
    proto = check(model, tmp_path / "model.onnx", samples(model), device)
    assert [node.op_type for node in proto.graph.node] == ["Div", "Flatten", "Gemm"]
    monkeypatch.setitem(FORMS, "Halved", lambda place: place.node("Mul", place.input, place.constant(0.5)))
    proto = check(model, tmp_path / "model.onnx", samples(model), device)
    assert next((node.op_type, node.name) for node in proto.graph.node) == ("Mul", "half")


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bn.Sequential([layers.Input(3), layers.Dense(2)])
    with pytest.raises(FileError, match="the folder of the file must exist"):
        bn.onnx.save(model, tmp_path / "none" / "model.onnx")
    path = tmp_path / "model.onnx"
    bn.onnx.save(model, path)
    before = path.read_bytes()
    monkeypatch.setattr(sys.modules["blobnet.onnx.save"], "_MAX_BYTES", 100)
    with pytest.raises(FileError, match=r"must be smaller than 2 GiB. Received needed=.* model\.save writes HDF5"):
        bn.onnx.save(model, path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("kind", "sizes", "attributes"),
    [
        ("LpPool", (3, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ("LpPool", (2, 11), {"kernel_shape": [4], "dilations": [2], "p": 3}),
        ("MaxPool", (2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "dilations": [2, 1, 3], "pads": [1, 1, 0, 0, 2, 1]}),
        ("MaxPool", (2, 9, 8), {"kernel_shape": [3, 3], "dilations": [2, 3], "strides": [2, 1], "ceil_mode": 1}),
        ("AveragePool", (2, 6, 5, 7), {"kernel_shape": [2, 2, 3], "dilations": [3, 1, 2], "pads": [1, 0, 2, 1, 1, 0]}),
        (
            "AveragePool",
            (3, 8, 7),
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
        ),
    ],
)
def test_windows_that_were_read_are_written(
    device: Any, tmp_path: Path, kind: str, sizes: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    node = onnx.helper.make_node(kind, ["x"], ["y"], name="pool", **attributes)
    ends = [
        onnx.helper.make_tensor_value_info(name, 1, ["N", *(sizes if name == "x" else map(str, sizes))])
        for name in "xy"
    ]
    opsets = [onnx.helper.make_opsetid("", 20)]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=9
    )
    onnx.save(proto, tmp_path / "first.onnx")
    x = np.random.default_rng(3).standard_normal((3, *sizes)).astype(np.float32)
    model = bn.onnx.load(tmp_path / "first.onnx")
    (wanted,) = run_onnx(tmp_path / "first.onnx", x)
    assert_same(predicted(model, {"x": x}, device), [wanted])
    proto = check_saved(model, tmp_path / "model.onnx", {"x": x}, [wanted])
    # What is read of it is one launch a window still, and not a product with a matrix.
    again = bn.onnx.load(tmp_path / "model.onnx")
    assert not any(item.elements > 1000 for item in again.graph.named_parameters.values())
    assert_same(predicted(again, {"x": x}, device), [wanted])


def test_pads_of_four_sides(device: Any, tmp_path: Path) -> None:
    """ONNX has all beginnings first: top, left, bottom, right."""
    image = layers.Input(2, 5, 6)()
    model = bn.Model(image, layers.Conv2D(3, 2, padding=((3, 0), (1, 2)), name="conv")(image))
    proto = check(model, tmp_path / "model.onnx", samples(model), device)
    (pads,) = [item.ints for node in proto.graph.node for item in node.attribute if item.name == "pads"]
    assert list(pads) == [3, 1, 0, 2]
    x = samples(model)
    again = bn.onnx.load(tmp_path / "model.onnx")
    assert_same(
        predicted(again, dict(zip(again.graph.inputs, x.values(), strict=True)), device), predicted(model, x, device)
    )


# -- files that were read take the place of the original --------------------------------------------------------------


def interface(path: Path) -> dict[str, Any]:
    """What code that runs a file sees of it, but for how many samples it is made for."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ends = {
        side: [
            (
                item.name,
                item.type,
                [size if axis or isinstance(size, str) else "N" for axis, size in enumerate(item.shape)],
            )
            for item in items
        ]
        for side, items in (("inputs", session.get_inputs()), ("outputs", session.get_outputs()))
    }
    meta = session.get_modelmeta()
    texts = {
        name: getattr(meta, name)
        for name in ("custom_metadata_map", "description", "domain", "graph_description", "graph_name", "version")
    }
    proto = onnx.load(path)
    docs = {item.name: item.doc_string for items in (proto.graph.input, proto.graph.output) for item in items}
    return {**ends, **texts, "docs": docs}


def hand_made(case: str) -> tuple[Any, dict[str, Any]]:
    """A classifier as a file has it, and samples of it: types, names and shapes that none of blobnet's have."""
    kind = {"halves": np.float16, "bytes": np.uint8, "doubles": np.float64}.get(case, np.float32)
    random, node = np.random.default_rng(0), onnx.helper.make_node
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    weights = {
        "w": random.normal(size=(4, 3, 3, 3)),
        "head": random.normal(size=(5, 4)),
        "m": random.normal(size=(5, 4)),
    }
    constants = {name: values.astype(kind if case == "halves" else np.float32) for name, values in weights.items()}
    constants |= {"axes": np.array([0, 2, 1, 2, 2, 2, 3]), "last": np.array([1]), "half": np.array(0.5, np.float32)}
    source, target = "serving/x:0", "input/Cast_0" if case == "bytes" else "/head/Gemm_output_0"
    batch: Any = 1 if case == "fixed" else "batch size"
    is_cast = case in ("bytes", "doubles")
    nodes = [
        *([node("Cast", [source], ["f"], to=1)] if is_cast else []),
        node("Conv", ["f" if is_cast else source, "w"], ["c"], source),
        node("GlobalAveragePool", ["c"], ["p"], "pool"),
        node("Flatten", ["p"], ["q"]),
        node("Gemm", ["q", "head"], ["logits" if case in ("vector", "branches") else target], transB=1),
    ]
    shape: list[Any] = [batch, 3, 6, 5]
    ends: dict[str, Any] = {target: (10 if case == "halves" else 1, [batch, 5])}
    if case == "one":  # All of a tensor is one sample.
        nodes, shape = [node("MatMul", [source, "m"], ["a"], source), node("Relu", ["a"], [target])], [6, 5]
        ends = {target: (1, [6, 4])}
    if case == "units last":
        nodes = [
            node("Transpose", [source], ["turned"], perm=[0, 3, 1, 2]),
            node("Conv", ["turned", "w"], ["c"], source),
            node("Transpose", ["c"], [target], perm=[0, 2, 3, 1]),
        ]
        shape, ends = [batch, 6, 5, 3], {target: (1, [batch, 4, 3, 4])}
    if case == "vector":
        nodes.append(node("ReduceSum", ["logits", "last"], [target], keepdims=0))
        ends = {target: (1, [batch])}
    if case == "branches":
        nodes += [node("Softmax", ["logits"], [target]), node("Greater", ["logits", "half"], ["is/high"])]
        nodes += [node("Reshape", ["c", "axes"], ["planes"], "planes")]
        ends |= {"is/high": (onnx.TensorProto.BOOL, [batch, 5]), "planes": (1, [batch, 2, 1, 2, 2, 2, 3])}
    entries = [onnx.helper.make_tensor_value_info(source, element, shape, "pixels")]
    if case == "branches":  # One that nothing reads is asked for all the same.
        entries.append(onnx.helper.make_tensor_value_info("unused", 7, ["M", 2], "nobody's"))
    used = {name for item in nodes for name in item.input}
    graph = onnx.helper.make_graph(
        nodes,
        "the graph",
        entries,
        [onnx.helper.make_tensor_value_info(name, own, sizes, f"of {name}") for name, (own, sizes) in ends.items()],
        [onnx.numpy_helper.from_array(values, name) for name, values in constants.items() if name in used],
        doc_string="what the graph is",
    )
    texts = {"doc_string": "Two lines,\nund \u00dcmlaute", "model_version": 7, "domain": "com.example"}
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9, **texts)
    onnx.helper.set_model_props(proto, {"stride": "32", "names": "{0: 'cat'}", "class_names": json.dumps([*"abcde"])})
    size = shape if isinstance(shape[0], int) else [4, *shape[1:]]
    samples = {source: (random.uniform(0, 200, size) if case == "bytes" else random.normal(size=size)).astype(kind)}
    return proto, samples | ({"unused": np.zeros((1, 2), np.int64)} if case == "branches" else {})


def exported(case: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What PyTorch's exporters write, by names of their own and by others."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 5)
    ).eval()
    x, options = torch.randn(4, 3, 6, 5), {}
    if case == "exported":
        options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    else:
        names = {"input_names": ["image"], "output_names": ["scores"]}
        options = {**names, "dynamic_axes": {"image": {0: "batch"}, "scores": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), folder / "e.onnx", dynamo=case == "exported", verbose=False, **options)
    proto = onnx.load(folder / "e.onnx")
    return proto, {proto.graph.input[0].name: x.numpy()}


@pytest.mark.parametrize(
    "case",
    [
        "plain",
        "fixed",
        "units last",
        "halves",
        "bytes",
        "doubles",
        "vector",
        "one",
        "branches",
        "exported",
        "exported with names",
    ],
)
def test_a_tuned_file_takes_the_place_of_the_original(device: Any, tmp_path: Path, case: str) -> None:
    """Of what onnxruntime says and takes, by the original's names and types; by way of HDF5, and read again."""
    proto, samples_of = exported(case, tmp_path) if case.startswith("exported") else hand_made(case)
    onnx.save(proto, tmp_path / "original.onnx")
    model = bn.onnx.load(tmp_path / "original.onnx", samples=case != "one", units_first=True)
    wanted = interface(tmp_path / "original.onnx")
    x = next(iter(samples_of.values()))
    x = x[None] if case == "one" else x.transpose(0, 3, 1, 2) if case == "units last" else x
    if case in ("plain", "halves", "exported"):
        before = model.weights
        model.fit(x, np.arange(len(x)) % 5, epochs=1, batch_size=len(x), device=device, verbose=False)
        assert any((before[name] != now).any() for name, now in model.weights.items())
    if case in ("bytes", "units last"):
        model.set_normalization([x[:, unit].mean() for unit in range(3)], [x[:, unit].std() for unit in range(3)])
    model.save(tmp_path / "tuned.h5")
    tuned = bn.load(tmp_path / "tuned.h5")
    for number in range(2):
        path = tmp_path / f"tuned{number}.onnx"
        bn.onnx.save(tuned, path)
        onnx.checker.check_model(str(path), full_check=True)
        assert interface(path) == wanted
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run([name for name, *_ in wanted["outputs"]], samples_of)
        given = predicted(tuned, {"x": x}, device)
        original = run_onnx(tmp_path / "original.onnx", samples_of)
        given = [values.transpose(0, 2, 3, 1) if case == "units last" else values for values in given]
        for values, ours, theirs in zip(found, given, original, strict=True):
            assert (values.dtype, values.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(values.ravel(), ours.ravel(), rtol=2e-3, atol=2e-3)
        tuned = bn.onnx.load(path, samples=case != "one", units_first=True)
        for name in ("serving.x:0/mean", "serving.x:0/deviation"):
            np.testing.assert_array_equal(tuned.weights.get(name), model.weights.get(name))


def test_a_new_head_keeps_the_names_and_texts_of_a_file(device: Any, tmp_path: Path) -> None:
    proto, _ = hand_made("halves")
    onnx.save(proto, tmp_path / "original.onnx")
    model = bn.onnx.load(tmp_path / "original.onnx").with_classes(3, ["x", "y", "z"], size=(7, 9))
    bn.onnx.save(model, tmp_path / "tuned.onnx")
    wanted, found = (interface(tmp_path / f"{name}.onnx") for name in ("original", "tuned"))
    assert found["custom_metadata_map"] == {**wanted["custom_metadata_map"], "class_names": '["x", "y", "z"]'}
    assert found["inputs"] == [("serving/x:0", "tensor(float16)", ["batch size", 3, 7, 9])]
    assert found["outputs"] == [("/head/Gemm_output_0", "tensor(float16)", ["batch size", 3])]
    assert {**found, "inputs": 0, "outputs": 0, "custom_metadata_map": 0} == {
        **wanted,
        "inputs": 0,
        "outputs": 0,
        "custom_metadata_map": 0,
    }
    # Names of classes that are no longer those of the model go.
    bn.onnx.save(bn.onnx.load(tmp_path / "original.onnx").with_classes(3), tmp_path / "bare.onnx")
    assert set(interface(tmp_path / "bare.onnx")["custom_metadata_map"]) == {"stride", "names"}


def test_what_is_kept_of_a_file_must_be_whole(tmp_path: Path) -> None:
    onnx.save(hand_made("plain")[0], tmp_path / "original.onnx")
    model = bn.onnx.load(tmp_path / "original.onnx")
    whole = json.loads(json.dumps(model.graph.origin))
    for change in (
        {"model": {"docString": 3}},
        {"model": []},
        {"inputs": {"serving.x:0": {"name": "x"}}},
        {"outputs": [1]},
        {"outputs": {"a": {"name": "x", "shape": ["N"]}}},
    ):
        model.graph = replace(model.graph, origin={**whole, **change})
        model.save(tmp_path / "model.h5")
        rule = r"^onnx\.save: what a model keeps of the ONNX file that it was read from must be whole\. Received cause="
        with pytest.raises(OptionError, match=rule):
            bn.onnx.save(bn.load(tmp_path / "model.h5"), tmp_path / "x.onnx")
