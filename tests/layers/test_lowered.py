"""Layers from a text: their own, a user's in a file of its own, in plans and in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.contraction import Function
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, ContractionError, FileError, OptionError, ShapeError
from blobnet.execution.executor import Executor
from blobnet.layers import base
from blobnet.layers.activation import ACTIVATIONS, Activation
from blobnet.layers.lowered import spelled_out
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import Shape
from blobnet.planning import make_plan
from tests.layers.arranged import Arrangement
from tests.layers.torch_contract import run_torch_contract

DENSE = "function (I[N, C, ...], W[F, C]) -> (O) { O[n, f, ... : N, F, ...] = +(I[n, c, ...] * W[f, c]); }"


@pytest.mark.parametrize("shape", [Shape(3, 5, 7), Shape(2, 3, 2, 4), Shape(3, 6), Shape(4)], ids=str)
def test_a_layer_of_one_line(device: Device, shape: Shape) -> None:
    layer = layers.Contraction(DENSE, sizes={"F": 5})
    run_torch_contract(
        device, layer, [shape], lambda x, p: (x[0].movedim(1, -1) @ p["W"].T).movedim(-1, 1), differences=True
    )


FUNCTIONS = ["leaky_relu(0.3)", "relu(1.5)", *(name for name in ACTIVATIONS if Activation(name).elementwise)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_activation_is_in_the_launch_before_it(device: Device, function: str) -> None:
    layer = layers.Contraction(DENSE, sizes={"F": 5})
    both = Arrangement("both", training=False, residual=True, activation=function)
    report = run_torch_contract(
        device, layer, [Shape(3, 4, 5)], lambda x, p: (x[0].movedim(1, -1) @ p["W"].T).movedim(-1, 1),
        training=False, arrangements=[both], fused=[function], absolute=1e-5,
    )  # fmt: skip
    before = {"convolution/pack_weight"} if device.model.is_simt else set()  # GPUs put the weights in order.
    made = [[kernel for kernel in run.kernels if kernel not in before] for run in report.runs.values()]
    assert {len(kernels) for kernels in made} == {1}


def test_an_activation_behind_a_layer_has_no_launch_forward() -> None:
    model = bn.Sequential([layers.Input(units=3, height=4, width=5), layers.GroupNorm(1), layers.Activation("relu")])
    plan = make_plan(model.graph, 2, loss=bn.losses.MeanSquaredError(), training=True, input_delta=True)
    assert plan.fused == {"activation_1": "groupnorm_1"}
    assert [call.kernel for call in plan.phase("backward")].count("activation/backward") == 1
    # What a maximum gives its derivative reads.
    model = bn.Sequential([layers.Input(units=3, height=4, width=5), layers.GlobalMaxPool(), layers.Activation("relu")])
    assert not make_plan(model.graph, 2, loss=bn.losses.MeanSquaredError(), training=True, input_delta=True).fused
    assert make_plan(model.graph, 2).fused


def test_several_inputs(device: Device) -> None:
    text = """function (A[N, C, Y, X], B[N, C], scale[C]) -> (O) {
      M[n, c] = +(A[n, c, y, x]);
      O[n, c, y, x : N, C, Y, X] = +(A[n, c, y, x] * scale[c] + M[n, c] * B[n, c]);
    }"""
    layer = layers.Contraction(text)
    assert layer.arity == (2, 2)
    shapes = [Shape(3, 5, 4), Shape(3)]
    assert [(spec.name, spec.initializer) for spec in layer.parameters(shapes)] == [("scale", "ones")]
    run_torch_contract(
        device,
        layer,
        shapes,
        lambda x, p: x[0] * p["scale"][:, None, None] + (x[0].sum((2, 3)) * x[1])[:, :, None, None],
        absolute=1e-4,
    )


@pytest.mark.parametrize("shape", [Shape(5), Shape(3, 4), Shape(4, 3, 5)], ids=str)
def test_extremes_of_units(device: Device, shape: Shape) -> None:
    """Derivatives of what is a maximum read it, and so it is kept."""
    text = "function (I[N, C, ...], b[C]) -> (O) { O[n, 0, ... : N, 1, ...] = <>(I[n, c, ...] * b[c]); }"
    for sign, name in (("<", "amin"), (">", "amax")):
        layer = layers.Contraction(text.replace("<>", sign))

        def module(x: list[Any], p: dict[str, Any], name: str = name) -> Any:
            return getattr(x[0] * p["b"].reshape(-1, *(1,) * shape.rank), name)(1, keepdim=True)

        run_torch_contract(device, layer, [shape], module)


def test_an_input_that_counts_for_nothing_gets_zeros(device: Device) -> None:
    layer = layers.Contraction("function (A[N, C], B[N, C]) -> (O) { O[n, c] = +(A[n, c] * floor(B[n, c])); }")
    run_torch_contract(device, layer, [Shape(5)] * 2, lambda x, p: x[0] * x[1].detach().floor())


@pytest.mark.parametrize(
    ("text", "rank", "expected"),
    [
        ("function (I[N, C, ...]) -> (O) { O[n, c, ...] = +(I[n, c, ...]); }", 2, "I[N, C, Y, X]"),
        ("function (I[N, C, ...]) -> (O) { O[n, c, ... : N, C, ...] = +(I[n, c, ...]); }", 1, "O[n, c, x : N, C, X]"),
        ("function (I[N, ..., C]) -> (O) { O[n, ..., c] = +(I[n, ..., c]); }", 0, "O[n, c] = +(I[n, c])"),
        ("function (I[N, ..., C]) -> (O) { O[n, ..., c] = +(I[n, ..., c]); }", 2, "O[n, y, x, c] = +(I[n, y, x, c])"),
        ("function (I[N, C, ...]) -> (O) { O[n, c, ...] = +(I[n, c, ...]); }", 3, "(I[N, C, Z, Y, X])"),
        ("function (X[N, C, ...]) -> (Y) { Y[n, c, ...] = +(X[n, c, ...]); }", 3, "(X[N, C, Z, Y_, X_])"),
        (
            "function (x[N, C, ...]) -> (y) { y[n, c, ...] = +(x[n, c, ...]); }",
            2,
            "y[n, c, y_, x_] = +(x[n, c, y_, x_])",
        ),
    ],
)
def test_axes_in_place_of_dots(text: str, rank: int, expected: str) -> None:
    assert expected in spelled_out(text, rank)
    assert "..." not in spelled_out(text, rank)


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharpened(layers.ContractionLayer):
    """What a user writes: softmax over the positions, with a learned sharpness a unit."""

    epsilon: float = 1e-3

    def function(self, inputs: Sequence[Shape]) -> Function:
        text = f"""function (I[N, C, ...], scale[C]) -> (O) {{
          M[n, c] = >(I[n, c, ...]);
          P[n, c, ...] = +(exp(scale[c] * (I[n, c, ...] - M[n, c])));
          S[n, c] = +(P[n, c, ...]);
          O[n, c, ...] = +(P[n, c, ...] / (S[n, c] + {self.epsilon}));
        }}"""
        return layers.function(text, inputs[0])


@dataclass(frozen=True)
class Forgetful(layers.ContractionLayer):
    """Squares."""

    keeps_inputs: ClassVar[bool] = False

    def function(self, inputs: Sequence[Shape]) -> Function:
        return layers.function("function (I[N, C]) -> (O) { O = I * I; }")


def network() -> bn.Model:
    images = layers.Input(units=3, height=8, width=6)()
    first = layers.ConvTranspose2D(4, 3, stride=2, padding=1, activation="relu")(images)
    norm = layers.GroupNorm(2)(first)
    gates = layers.SqueezeExcite(2)(norm)
    both = layers.Concat()([gates, layers.PReLU()(layers.Contraction(DENSE, sizes={"F": 4})(norm))])
    parts = layers.split(Sharpened()(both), [3, 5])
    product = layers.Multiply()([layers.Upsample(2)(parts[0]), layers.GlobalMaxPool()(parts[0])])
    shrunk = layers.AdaptiveAveragePool((3, 2))(product)
    padded = layers.Pad(1)(layers.Permute((0, 2, 1))(shrunk))
    rows = layers.Reshape((5, -1))(layers.AdaptiveMaxPool((2, 3))(parts[1]))
    seen = layers.MultiHeadAttention(1)(rows)
    joined = layers.Concat()([layers.Flatten()(padded), layers.Flatten()(layers.LayerNorm()(seen))])
    return bn.Model(images, layers.Dense(3)(joined))


def batch(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    return random.standard_normal((count, 3, 8, 6)).astype(np.float32), random.integers(0, 3, count)


def write_weights(executor: Executor, model: bn.Model) -> None:
    parameters = np.zeros(executor.plan.request.parameters.elements, np.float32)
    for name, piece in executor.plan.request.parameters.slices.items():
        parameters[piece.offset : piece.offset + piece.elements] = model.weights[name].reshape(-1)
    executor.write_array("parameters", parameters)


def test_cells_that_no_term_reaches_are_cleared_for_the_samples_that_are_there(device: Device) -> None:
    text = "function (I[N, C, Y, X]) -> (O) { O[n, c + 1, y, x : N, F, (Y + 1)/2, (X + 1)/2] = +(I[n, c, 2*y, 2*x]); }"
    model = bn.Sequential([layers.Input(2, 5, 7), layers.Contraction(text, sizes={"F": 5}), layers.Activation("relu")])
    plan = make_plan(model.graph, 4, loss=bn.losses.MeanSquaredError(), training=True, tuning=device.tuning)
    executor = Executor(device, plan, debug=True)
    write_weights(executor, model)
    x = np.random.default_rng(3).standard_normal((4, 2, 5, 7)).astype(np.float32)
    executor.write_array("samples", x)
    for count in (4, 2):  # The second batch finds what the first one has left.
        executor.run("forward", count)
    expected = np.zeros((2, 5, 3, 4), np.float32)
    expected[:, 1:3] = np.maximum(x[:2, :, ::2, ::2], 0)
    np.testing.assert_array_equal(executor.read_blob(plan.outputs["activation_1"], 2), expected)


def test_plans_that_share_memory_give_the_same(device: Device) -> None:
    model = network()
    x, y = batch(5)
    found = []
    for share, reuse in ((True, True), (False, False)):
        plan = make_plan(
            model.graph, 5, loss=CrossEntropy(), training=True, tuning=device.tuning, share=share, reuse=reuse,
            input_delta=True,
        )  # fmt: skip
        executor = Executor(device, plan, debug=True)
        write_weights(executor, model)
        executor.write_array("samples", x)
        executor.write_array("labels", y.astype(np.int32))
        for phase in ("constant", "forward", "loss", "backward"):
            executor.run(phase, 4)  # One less than there is room for.
        found.append((executor.memory("gradients"), executor.read_blob(plan.deltas["input_1"], 4)))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all()
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_one_node_as_several_inputs(device: Device) -> None:
    node = layers.Input(units=3, height=2, width=4)()
    model = bn.Model(node, layers.Multiply()([node, node, node]))
    random = np.random.default_rng(2)
    x, delta = random.standard_normal((2, 5, 3, 2, 4)).astype(np.float32)
    loss = bn.losses.Expression(
        "function (P[N, C, Y, X], T[N, C, Y, X]) -> (L) { L[n] = +(P[n, c, y, x] * T[n, c, y, x]); }"
    )
    found = model.gradients(x, delta, loss=loss, device=device, debug=True)["input"]
    np.testing.assert_allclose(found, 3 * x**2 * delta / 5, rtol=1e-5, atol=1e-6)


def test_frozen_layers_keep_what_deltas_read(device: Device) -> None:
    node = layers.Input(units=4)()
    first = layers.Dense(6, name="first")(node)
    model = bn.Model(node, layers.Dense(2)(layers.SqueezeExcite(2, name="gates")(layers.Reshape((3, 2))(first))))
    x, y = np.random.default_rng(3).standard_normal((9, 4)).astype(np.float32), np.arange(9) % 2
    wanted = model.gradients(x, y, device=device)
    found = model.gradients(x, y, freeze=["gates"], device=device, debug=True)
    assert found.keys() == {name for name in wanted if not name.startswith("gates/")}
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_training_and_files(device: Device, tmp_path: Path) -> None:
    model = network()
    x, y = batch(13)
    history = model.fit(x, y, epochs=20, batch_size=5, optimizer=bn.optimizers.Adam(1e-2), seed=0, device=device)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    model.save(tmp_path / "model.h5")
    again = bn.load(tmp_path / "model.h5")
    assert again.graph.description() == model.graph.description()
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_a_file_with_a_layer_whose_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Halved(layers.ContractionLayer):
        keeps_inputs: ClassVar[bool] = False

        def function(self, inputs: Sequence[Shape]) -> Function:
            return layers.function("function (I[N, C]) -> (O) { O[n, c] = +(I[n, c] / 2); }")

    model = bn.Sequential([layers.Input(units=3), Halved(), layers.Dense(2)])
    model.save(tmp_path / "model.h5")
    monkeypatch.delitem(layers.Layer.kinds, "Halved")
    with pytest.raises(FileError, match=r"Received kind=Halved.*import the module that defines it"):
        bn.load(tmp_path / "model.h5")
    monkeypatch.setitem(layers.Layer.kinds, "Halved", Halved)
    assert bn.load(tmp_path / "model.h5").graph.vertices[1].layer == model.graph.vertices[1].layer


def test_every_layer_is_in_the_list_of_layers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text(encoding="utf-8")
    others = {"Layer", "ContractionLayer", "Node", "function"}
    assert not [name for name in layers.__all__ if f"`{name}" not in page and name not in others]


# -- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[], object], type[BlobnetError], str]] = {
    "no head": (
        lambda: layers.Contraction("O[n, c] = +(I[n, c])"),
        OptionError,
        r"Contraction: the text must have a head, with the sizes of its inputs",
    ),
    "nonsense": (
        lambda: layers.Contraction("function (I[N, C]) -> (O) { O[n, c] = (I[n, c]); }"),
        ContractionError,
        r"an aggregation .* must follow '='",
    ),
    "unknown size": (
        lambda: layers.Contraction(DENSE, sizes={"G": 3}),
        OptionError,
        r"G: the contraction has no such size",
    ),
    "no such parameter": (
        lambda: layers.Contraction(DENSE, {"V": "ones"}, {"F": 3}),
        OptionError,
        r"Contraction: an initializer must be that of a parameter. Received parameter=V. Hint: .*W",
    ),
    "unknown initializer": (
        lambda: layers.Contraction(DENSE, {"W": "one"}, {"F": 3}),
        OptionError,
        r"Contraction, W: the initializer must be a known one. Received initializer=one. Hint: did you mean 'ones'",
    ),
    "a size is missing": (
        lambda: layers.Contraction(DENSE, name="mix").output_shape([Shape(3, 2, 2)]),
        OptionError,
        r"mix \(Contraction\): the sizes of a parameter must be those of inputs, or given. Received parameter=W, .*'F'",
    ),
    "another rank": (
        lambda: layers.Contraction("function (I[N, C, Y, X]) -> (O) { O = exp(I); }").output_shape([Shape(3)]),
        ShapeError,
        r"(?s)Contraction: its contraction must fit its inputs. Received inputs=\(3\)\..*'I' must have 4 axes.*\^\^\^",
    ),
    "a text that no user of the layer wrote": (
        lambda: Forgetful().output_shape([Shape(3, 2)]),
        ShapeError,
        r"^Forgetful: the layer must fit its inputs, and its arrays .* 2\^31 elements\. Received inputs=\(3, 2\)\.$",
    ),
    "samples mixed": (
        lambda: layers.Contraction("function (I[N, C]) -> (O) { O[c, d : C, C] = +(I[n, c] * I[n, d]); }").output_shape(
            [Shape(3)]
        ),
        ShapeError,
        r"the output must have the samples as its first axis",
    ),
    "two outputs": (
        lambda: layers.Contraction("function (I[N, C]) -> (O, P) { O = exp(I); P = exp(O); }").output_shape([Shape(3)]),
        OptionError,
        r"its function must have one output. Received outputs=\('O', 'P'\)",
    ),
    "a lie about what is kept": (
        lambda: make_plan(
            bn.Sequential([layers.Input(units=3), Forgetful()]).graph,
            2,
            loss=bn.losses.MeanSquaredError(),
            training=True,
            input_delta=True,
        ),
        OptionError,
        r"forgetful_1 \(Forgetful\): keeps_inputs and keeps_output must say what derivatives read.*read=\['I'\]",
    ),
    "too many inputs": (
        lambda: layers.Contraction(DENSE, sizes={"F": 2})([layers.Input(units=3)(), layers.Input(units=3)()]),
        ShapeError,
        r"the layer takes 1 input\(s\)\. Received inputs=2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    make, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message):
        make()


def test_names_of_before_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"blobnet\.layers\.Lowered is called ContractionLayer now"):
        assert layers.Lowered is layers.ContractionLayer
    with pytest.warns(DeprecationWarning, match=r"blobnet\.layers\.base\.Site is called LayerContext now"):
        assert base.Site is base.LayerContext
    with pytest.raises(AttributeError, match=r"module 'blobnet\.layers' has no attribute 'Lower'"):
        layers.Lower  # noqa: B018
