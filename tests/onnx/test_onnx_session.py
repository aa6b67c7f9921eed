"""Files that run on arrays of any sizes, with what of them stays on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet.onnx.boxes import non_max_suppression

_INT = onnx.TensorProto.INT64


def _runtime(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


def _open(model: Any, outputs: dict[str, tuple[int, int]]) -> Any:
    """The graph with outputs of these types and numbers of axes, whose sizes are open."""
    for item in model.graph.output:
        kind, rank = outputs[item.name]
        item.type.CopyFrom(helper.make_tensor_type_proto(kind, [None] * rank))
    return model


def detector(random: np.random.Generator) -> Any:
    """Boxes and scores of every place of a picture of any size; those that no better one overlaps, the best first."""
    constants = {
        "w1": random.standard_normal((8, 3, 3, 3)).astype(np.float32) / 4,
        "w2": random.standard_normal((7, 8, 1, 1)).astype(np.float32),
        "rows": np.array([0, 7, -1]),
        "parts": np.array([4, 3]),
        "half": np.array(0.5, np.float32),
        "most": np.array([5]),
        "overlap": np.array([0.3], np.float32),
        "least": np.array([0.5], np.float32),
        "box": np.array(2),
        "kind": np.array(1),
        "two": np.array([1]),
        "few": np.array([4]),
        "none": np.array([0]),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "w1"], ["c1"], "stem", strides=[2, 2], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], "relu"),
        node("Conv", ["r1", "w2"], ["c2"], "head"),
        node("Reshape", ["c2", "rows"], ["r2"], "flat"),
        node("Split", ["r2", "parts"], ["places", "raw"], "apart", axis=1),
        node("Transpose", ["places"], ["boxes"], "boxes", perm=[0, 2, 1]),
        node("Sigmoid", ["raw"], ["scores"], "scores"),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["found"], "nms"),
        node("Gather", ["found", "box"], ["numbers"], "numbers", axis=1),
        node("Gather", ["found", "kind"], ["kinds"], "kinds", axis=1),
        node("Squeeze", ["boxes", "none"], ["all"], "squeeze"),
        node("Gather", ["all", "numbers"], ["kept"], "kept", axis=0),
        node("Mul", ["kept", "half"], ["small"], "small"),
    ]
    outputs = {"small": (1, 2), "kinds": (_INT, 1), "scores": (1, 3)}
    model = graph_of(nodes, {"image": (1, 3, "h", "w")}, dict.fromkeys(outputs), constants)
    return _open(model, outputs)


def test_a_detector_runs_on_pictures_of_any_size(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model = detector(random)
    path = saved(tmp_path, model)
    session = bn.onnx.Session(path)
    sizes = [(9, 14), (16, 16), (11, 7), (9, 14)]
    for size in sizes:
        x = random.standard_normal((1, 3, *size)).astype(np.float32)
        found = session.predict(x)
        assert list(found) == ["small", "kinds", "scores"]
        expected = {
            "evaluator": ReferenceEvaluator(model).run(None, {"image": x}),
            "runtime": _runtime(path, {"image": x}),
        }
        for name, wanted in expected.items():
            assert len(wanted[1]) > 2
            for output, values in zip(found.values(), wanted, strict=True):
                assert output.dtype == values.dtype
                np.testing.assert_allclose(output, values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert len(session._networks) == 3
    # A network that was planned for a size has what it had.
    first = session._networks[-1]
    session.predict(x)
    assert session._networks[-1] is first


def test_what_the_host_does_is_said(tmp_path: Path) -> None:
    path = saved(tmp_path, detector(np.random.default_rng(1)))
    network = bn.onnx.Session(path).network((3, 12, 10))
    assert network.tail == (
        "nms (NonMaxSuppression)",
        "numbers (Gather)",
        "kinds (Gather)",
        "squeeze (Squeeze)",
        "kept (Gather)",
        "small (Mul)",
    )
    assert network.model is not None
    # The device ends where the host begins: to take the only sample out of its axis is none of the device's either.
    assert set(network.model.graph.outputs) == {"scores", "boxes"}
    assert set(network.model.graph.trainable) == {"stem/weight", "head/weight"}
    message = (
        r"node nms \(NonMaxSuppression\): the operator's inputs must be known .* Hint: bn.onnx.Session\(path\) runs"
    )
    with pytest.raises(bn.errors.OptionError, match=message):
        bn.onnx.load(path, sizes=(3, 12, 10))
    message = r"input image: every axis but that of the samples must have a size"
    with pytest.raises(bn.errors.OptionError, match=message) as found:
        bn.onnx.Session(path).network()
    assert str(found.value).endswith(" Hint: session.network(sizes={'h': 224, 'w': 224}), say.")
    session = bn.onnx.Session(path)
    assert session.network(sizes={"h": 224, "w": 224}).tail == network.tail


def test_a_network_whose_values_must_be_known_says_who_is_given_them(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "turn")]
    model = graph_of(nodes, {"x": (1, 6), "shape": (2,)}, {"y": None})
    with pytest.raises(bn.errors.OptionError, match="the input must be known when the model is read") as found:
        bn.onnx.Session(saved(tmp_path, model)).network()
    assert str(found.value).endswith("Hint: session.predict runs the file: it is given the value.")


def test_samples_on_another_axis_reach_the_host_as_onnx_has_them(tmp_path: Path) -> None:
    """(samples, 6, 4) to (6, samples, 4) and to (6 * samples, 4), which the host sorts."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["a"], "swap", perm=[1, 0, 2]),
        node("Exp", ["a"], ["b"], "exp"),
        node("Reshape", ["b", "rows"], ["c"], "rows"),
        node("TopK", ["c", "two"], ["values", "places"], "best", axis=0),
        node("Hardmax", ["b"], ["sums"], "sums", axis=0),
    ]
    outputs = {"values": (1, 2), "places": (_INT, 2), "sums": (1, 3)}
    constants = {"rows": np.array([-1, 4]), "two": np.array([2])}
    model = _open(graph_of(nodes, {"x": ("N", 6, 4)}, dict.fromkeys(outputs), constants), outputs)
    path = saved(tmp_path, model)
    session = bn.onnx.Session(path)
    for count in (3, 1):
        x = np.random.default_rng(count).standard_normal((count, 6, 4)).astype(np.float32)
        for found, wanted in zip(session.predict(x).values(), _runtime(path, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(("kinds", "opset"), [(("Neg", "Exp"), 17), (("HardSwish", "Gelu"), 20)])
def test_a_branch_that_values_decide_is_taken_on_the_host(kinds: tuple[str, str], opset: int, tmp_path: Path) -> None:
    """Some operators ONNX's evaluator knows, others it writes out, of these some for the types of their inputs."""
    node = helper.make_node
    branches = []
    for name, kind in zip(("then", "else"), kinds, strict=True):
        output = helper.make_tensor_value_info(name, 1, None)
        branches.append(helper.make_graph([node(kind, ["a"], [name])], name, [], [output]))
    nodes = [
        node("Tanh", ["x"], ["a"], "tanh"),
        node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        node("Less", ["sum", "zero"], ["is_less"], "less"),
        node("If", ["is_less"], ["y"], "branch", then_branch=branches[0], else_branch=branches[1]),
    ]
    constants = {"zero": np.array(0, np.float32)}
    model = _open(graph_of(nodes, {"x": ("N", 5)}, {"y": None}, constants, opset=opset), {"y": (1, 2)})
    path = saved(tmp_path, model)
    session = bn.onnx.Session(path)
    x = np.random.default_rng(2).standard_normal((2, 5)).astype(np.float32)
    for values in (x - x.mean() - 1, x - x.mean() + 1):
        np.testing.assert_allclose(session.predict(values), _runtime(path, {"x": values})[0], rtol=1e-5, atol=1e-6)
    assert len(session._networks) == 1


@pytest.mark.parametrize("kind", ["uint8", "float16", "float64"])
def test_pictures_go_in_as_they_are(kind: str, tmp_path: Path) -> None:
    constants = {"w": np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float32)}
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("Cast", ["x"], ["a"], to=1), helper.make_node("Conv", ["a", "w"], ["y"])]
    model = graph_of(nodes, {"x": ("N", 3, "h", "w")}, {"y": ("N", 4, None, None)}, constants, type_=type_)
    session = bn.onnx.Session(saved(tmp_path, model))
    for width in (6, 9):
        x = np.random.default_rng(width).integers(0, 255, (2, 3, 5, width)).astype(kind)
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(session.predict(x), wanted, rtol=1e-4, atol=1e-2)
    assert session._networks[0].model is not None
    assert not session._networks[0]._imported.known


def test_inputs_of_sessions_that_do_not_fit(tmp_path: Path) -> None:
    path = saved(tmp_path, detector(np.random.default_rng(4)))
    session = bn.onnx.Session(path)
    x = np.zeros((1, 3, 8, 8), np.float32)
    message = r"input image: the sizes of an input must be those that the file says. Received sizes=\(1, 4, 8, 8\)"
    with pytest.raises(bn.errors.OptionError, match=message):
        session.predict(np.zeros((1, 4, 8, 8), np.float32))
    with pytest.raises(bn.errors.OptionError, match=r"the array must be of the type that the file says.*complex"):
        session.predict(x.astype(complex))
    with pytest.raises(bn.errors.OptionError, match=r"predict: each name must be that of an input of the model"):
        session.predict({"picture": x})
    assert session.predict({"image": x})["scores"].shape == (1, 3, 16)
    message = r"input image: the values must be an array: numbers in rows of one length. Received cause="
    for call in (session.predict, lambda values: session.run([values])):
        with pytest.raises(bn.errors.OptionError, match=message):
            call([[1, 2], [3]])
    assert session.inputs == {"image": (1, 3, "h", "w")}
    assert session.outputs == ("small", "kinds", "scores")


_WHOLE = ["uint8", "int8", "int16", "int32", "int64"]
#: Nodes from whole numbers x and y and real ones f to an output z; k is 7, w a filter.
_OF_WHOLE: dict[str, list[tuple[str, list[str], str, dict[str, Any]]]] = {
    "sum that overflows": [("Add", ["x", "y"], "a", {}), ("Cast", ["a"], "z", {"to": 1})],
    "quotient": [("Div", ["x", "k"], "a", {}), ("Mul", ["a", "k"], "b", {}), ("Cast", ["b"], "z", {"to": 1})],
    "choices, then a difference": [
        ("Max", ["x", "y"], "a", {}),
        ("Concat", ["a", "x"], "b", {"axis": 2}),
        ("Sub", ["b", "k"], "c", {}),
        ("Cast", ["c"], "z", {"to": 1}),
    ],
    "filter of casts": [("Cast", ["x"], "a", {"to": 1}), ("Conv", ["a", "w"], "z", {})],
    "filter of sums": [
        ("Cast", ["x"], "a", {"to": 1}),
        ("Add", ["a", "f"], "b", {}),
        ("Conv", ["b", "w"], "z", {}),
    ],
    "casts to whole numbers": [
        ("Mul", ["f", "f"], "a", {}),
        ("CastLike", ["a", "x"], "b", {}),
        ("Mul", ["b", "k"], "c", {}),
        ("Cast", ["c"], "z", {"to": 1}),
    ],
    "condition": [("Greater", ["x", "y"], "a", {}), ("Where", ["a", "f", "f"], "z", {})],
}


@pytest.mark.parametrize("kind", _WHOLE)
@pytest.mark.parametrize("case", _OF_WHOLE)
def test_whole_numbers_are_whole_for_every_number_of_samples(case: str, kind: str) -> None:
    """They overflow and are cut off as ONNX says, on the host where the device would not."""
    nodes = [helper.make_node(name, inputs, [output], **more) for name, inputs, output, more in _OF_WHOLE[case]]
    read, type_ = {name for node in nodes for name in node.input}, helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = {"k": np.array(7, kind), "w": np.ones((3, 2, 2, 2), np.float32)}
    constants = {name: array for name, array in constants.items() if name in read}
    model = graph_of(nodes, {name: ("N", 2, 3, 4) for name in "xyf" if name in read}, {"z": None}, constants)
    for item in model.graph.input:
        item.type.tensor_type.elem_type = 1 if item.name == "f" else type_
    for count in (1, 3):
        random = np.random.default_rng(count)
        limits = np.iinfo(kind if kind in ("uint8", "int8") else "int16")
        x = {
            item.name: random.standard_normal((count, 2, 3, 4)).astype(np.float32)
            if item.name == "f"
            else random.integers(limits.min, limits.max, (count, 2, 3, 4)).astype(kind)
            for item in model.graph.input
        }
        (wanted,) = ReferenceEvaluator(model).run(None, x)
        (found,) = bn.onnx.Session(model).run(x).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_sums_of_whole_numbers_are_none_of_a_model(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"], "sum"), helper.make_node("Cast", ["a"], ["y"], to=1)]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 3)}, {"y": None}, type_=onnx.TensorProto.UINT8))
    rule = r"node sum \(Add\): whole numbers are computed by the host alone, of inputs that are known\. Received type="
    with pytest.raises(bn.errors.OptionError, match=rule + r"uint8\. Hint: cast them to float before it\. bn\.onnx"):
        bn.onnx.load(path)
    assert bn.onnx.Session(path).predict(np.array([[200, 5, 128]], np.uint8)).tolist() == [[144, 10, 0]]


def test_indices_of_maxima_come_from_the_host(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("MaxPool", ["a"], ["y", "places"], "pool", kernel_shape=[2, 3], strides=[2, 1]),
    ]
    outputs = {"y": (1, 4), "places": (_INT, 4)}
    path = saved(tmp_path, _open(graph_of(nodes, {"x": ("N", 3, 6, 7)}, dict.fromkeys(outputs)), outputs))
    # Of equal values nobody says whose index counts: none are below zero.
    x = np.random.default_rng(5).random((2, 3, 6, 7)).astype(np.float32)
    found = bn.onnx.Session(path).predict(x)
    for output, wanted in zip(found.values(), _runtime(path, {"x": x}), strict=True):
        np.testing.assert_array_equal(output, wanted)
    message = r"node pool \(MaxPool\): a model must not be asked for the indices of maxima. .* bn.onnx.Session"
    with pytest.raises(bn.errors.OptionError, match=message):
        bn.onnx.load(path)


def test_boxes_left_are_those_of_onnxruntime(tmp_path: Path) -> None:
    """With boxes of any corners or by their centers, equal scores and limits that bind."""
    random = np.random.default_rng(6)
    names = ["boxes", "scores", "most", "overlap", "least"]
    for centers in (0, 1):
        boxes = random.integers(0, 12, (2, 40, 4)).astype(np.float32)
        scores = random.integers(0, 20, (2, 3, 40)).astype(np.float32) / 16
        limits = [np.array([6]), np.array([0.25], np.float32), np.array([0.3], np.float32)]
        nodes = [helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=centers)]
        constants = dict(zip(names[2:], limits, strict=True))
        inputs = {"boxes": boxes.shape, "scores": scores.shape}
        path = saved(tmp_path, _open(graph_of(nodes, inputs, {"y": None}, constants), {"y": (_INT, 2)}))
        (wanted,) = _runtime(path, {"boxes": boxes, "scores": scores})
        found = non_max_suppression(boxes, scores, *limits, centers=bool(centers))
        assert len(found) > 20
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(bn.onnx.Session(path).predict([boxes, scores]), wanted)
