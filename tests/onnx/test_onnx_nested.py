"""Functions, and graphs within nodes: written out and checked as the graph around them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet.errors import FileError
from blobnet.onnx.operation import UnsupportedError

node = helper.make_node


def _normalized(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)


def _samples(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [9, 13, 20])
@pytest.mark.parametrize("axes", [None, [2, 3]])
def test_attributes_that_a_node_leaves_out_are_those_of_the_operator(
    opset: int, axes: list[int] | None, tmp_path: Path
) -> None:
    attributes = {} if axes is None else {"axes": axes}
    model = graph_of(
        [node("MeanVarianceNormalization", ["x"], ["y"], "norm", **attributes)],
        {"x": ("N", 3, 4, 5)},
        {"y": ("N", 3, 4, 5)},
        opset=opset,
    )
    x = _samples(2, 3, 4, 5)
    wanted = _normalized(x, (0, 2, 3) if axes is None else (2, 3))
    np.testing.assert_allclose(bn.onnx.Session(saved(tmp_path, model)).predict(x), wanted, rtol=1e-4, atol=1e-5)


def test_a_large_mean_leaves_the_variance_exact(tmp_path: Path) -> None:
    """Means of 1,000 with deviations of 0.1: E[x^2] - E[x]^2 in float32 is noise, and often below 0."""
    model = graph_of(
        [node("MeanVarianceNormalization", ["x"], ["y"], axes=[2, 3])], {"x": ("N", 3, 4, 5)}, {"y": ("N", 3, 4, 5)}
    )
    x = 1000 + _samples(2, 3, 4, 5) / 10
    found = bn.onnx.load(saved(tmp_path, model)).predict(x)
    np.testing.assert_allclose(found, _normalized(x, (2, 3)), rtol=1e-2, atol=3e-3)


def _body(*nodes: Any, initializers: dict[str, Any] | None = None) -> Any:
    """The body of a loop that takes c to d."""
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("goes", 9), ("d", 1))]
    entries = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("i", 7), ("on", 9), ("c", 1))]
    arrays = [onnx.numpy_helper.from_array(values, name) for name, values in (initializers or {}).items()]
    return helper.make_graph([node("Identity", ["on"], ["goes"]), *nodes], "body", entries, ends, arrays)


def _loop(*nodes: Any, **settings: Any) -> Any:
    """Two trips through these nodes."""
    nodes = [node("Loop", ["trips", "", "x"], ["y"], "loop", body=_body(*nodes, **settings))]
    return graph_of(nodes, {"x": ("N", 3, 4)}, {"y": ("N", 3, 4)}, {"trips": np.array(2)})


def _function() -> tuple[Any, Any]:
    """A call of a function that multiplies by an attribute, which is 3 where the call leaves it out; and that."""
    constant = node("Constant", [], ["k"])
    constant.attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=1))
    function = helper.make_function(
        "own",
        "Times",
        ["a"],
        ["z"],
        [constant, node("Mul", ["a", "k"], ["z"])],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("factor", 3.0)],
    )
    return node("Times", ["c"], ["d"], "times", domain="own"), function


def test_functions_in_loops_are_written_out(tmp_path: Path) -> None:
    x = _samples(2, 3, 4)
    path = saved(tmp_path, _loop(node("MeanVarianceNormalization", ["c"], ["d"], "norm", axes=[1, 2])))
    np.testing.assert_allclose(bn.onnx.load(path).predict(x), _normalized(x, (1, 2)), rtol=1e-4, atol=1e-5)
    call, function = _function()
    model = _loop(call)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    np.testing.assert_allclose(bn.onnx.load(saved(tmp_path, model)).predict(x), 9 * x, rtol=1e-6)


def test_a_model_in_memory_is_what_its_file_is(tmp_path: Path) -> None:
    call, function = _function()
    nodes = [node("Identity", ["x"], ["c"]), call, node("MeanVarianceNormalization", ["d"], ["y"], axes=[1, 2])]
    model = graph_of(nodes, {"x": ("N", 3, 4)}, {"y": ("N", 3, 4)})
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    before, x = model.SerializeToString(deterministic=True), _samples(2, 3, 4)
    found = bn.onnx.Session(model).predict(x)
    assert model.SerializeToString(deterministic=True) == before
    np.testing.assert_array_equal(found, bn.onnx.Session(saved(tmp_path, model)).predict(x))
    np.testing.assert_allclose(found, _normalized(3 * x, (1, 2)), rtol=1e-4, atol=1e-5)
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(FileError, match=r"onnx.Session: the model must be one that ONNX's checker accepts"):
        bn.onnx.Session(model)
    model.opset_import[0].version = 999
    with pytest.raises(FileError, match=r"onnx.Session: the operator set of the model must be one of 1 to"):
        bn.onnx.Session(model)


def test_operators_that_there_are_not_are_found_as_a_session_begins(tmp_path: Path) -> None:
    model = graph_of([node("Det", ["x"], ["y"], "det")], {"x": ("N", 3, 3)}, {"y": ("N",)})
    for file in (model, saved(tmp_path, model)):
        with pytest.raises(UnsupportedError, match=r"node det \(Det\): every operator must be one that blobnet has"):
            bn.onnx.Session(file)


def test_more_composite_operators_than_are_written_out(tmp_path: Path) -> None:
    names = ["x", *(f"v{number}" for number in range(1001))]
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    nodes = [node("Attention", [names[i], "x", "x"], [names[i + 1]], **heads) for i in range(1001)]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 4, 8)}, {"v1000": None}, opset=23))
    with pytest.raises(FileError, match=r"1,000 nodes of operators that ONNX defines by others. Received nodes=1001"):
        bn.onnx.load(path)


@pytest.mark.parametrize(("before", "count"), [(0, 320), (60_000, 90)])
def test_operators_that_take_time_with_all_nodes_before_them(
    before: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing one out looks at each node before it: a thousand in a row took minutes."""
    names = ["x", *(f"v{number}" for number in range(before + count))]
    ends = list(itertools.pairwise(names))
    nodes = [node("Relu", [source], [target]) for source, target in ends[:before]]
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    nodes += [node("Attention", [source, "x", "x"], [target], **heads) for source, target in ends[before:]]
    model = graph_of(nodes, {"x": ("N", 4, 8)}, {names[-1]: None}, opset=23)
    monkeypatch.delattr(onnx.inliner, "inline_selected_functions")
    with pytest.raises(
        FileError, match=rf"time with all nodes before each. Received nodes={before + count}, of_these="
    ):
        bn.onnx.Session(model)


# -- external data -----------------------------------------------------------------------------------------------------


def _moved(tensor: Any, folder: Path, location: str = "weights.bin") -> None:
    """Puts a tensor's data into another file."""
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def _in_a_loop() -> tuple[Any, Any]:
    model = _loop(node("Add", ["c", "w"], ["d"]), initializers={"w": _samples(4)})
    (loop,) = model.graph.node
    return model, loop.attribute[0].g.initializer[0]


def _in_a_branch() -> tuple[Any, Any]:
    """A graph of no nodes."""
    ends = [helper.make_tensor_value_info("w", 1, (4,))]
    branch = helper.make_graph([], "branch", [], ends, [onnx.numpy_helper.from_array(2 * _samples(4), "w")])
    nodes = [
        node("If", ["is_so"], ["b"], "branch", then_branch=branch, else_branch=branch),
        node("Add", ["x", "b"], ["y"]),
    ]
    model = graph_of(nodes, {"x": ("N", 3, 4)}, {"y": ("N", 3, 4)}, {"is_so": np.array(True)})
    (taken,) = (item.g for item in model.graph.node[0].attribute if item.name == "then_branch")
    return model, taken.initializer[0]


def _in_a_function() -> tuple[Any, Any]:
    model = graph_of([node("Plus", ["x"], ["y"], domain="own")], {"x": ("N", 3, 4)}, {"y": ("N", 3, 4)})
    constant = node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(2 * _samples(4), "k"))
    nodes = [constant, node("Add", ["a", "k"], ["z"])]
    function = helper.make_function("own", "Plus", ["a"], ["z"], nodes, [helper.make_opsetid("", 17)])
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    return model, model.functions[0].node[0].attribute[0].t


@pytest.mark.parametrize("made", [_in_a_loop, _in_a_branch, _in_a_function])
def test_external_data_of_inner_graphs(made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model, tensor = made()
    _moved(tensor, folder)
    x = _samples(2, 3, 4)
    np.testing.assert_allclose(bn.onnx.load(saved(folder, model)).predict(x), x + 2 * _samples(4), rtol=1e-5, atol=1e-6)
    with pytest.raises(FileError, match=r"a model that is no file must have all of its data. Received tensor=.* Hint"):
        bn.onnx.Session(model)
    (tmp_path / "weights.bin").write_bytes((folder / "weights.bin").read_bytes())
    for location in ("../weights.bin", str(folder / "weights.bin")):
        tensor.external_data[0].value = location
        with pytest.raises(FileError, match="external data must lie in the folder of the model"):
            bn.onnx.load(saved(folder, model))


# -- sequences ---------------------------------------------------------------------------------------------------------


def _sequence(*nodes: Any, of: str = "x") -> Any:
    """Nodes behind a sequence s of two halves."""
    constants = {"two": np.array(2), "one": np.array(1)}
    head = [node("NonZero", ["x"], ["n"], "places"), node("Cast", ["n"], ["late"], to=1)]
    split = node("SplitToSequence", [of, "two"], ["s"], "split", axis=1)
    return graph_of([*head, split, *nodes], {"x": ("N", 4, 5)}, {"y": None}, constants)


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (
            _sequence(node("Identity", ["s"], ["t"], "it"), node("SequenceAt", ["t", "one"], ["y"])),
            "node it (Identity)",
        ),
        (_sequence(node("SequenceAt", ["s", "one"], ["y"]), of="late"), "node split (SplitToSequence)"),
        (
            _sequence(node("ReduceMin", ["n"], ["k"], keepdims=0), node("SequenceAt", ["s", "k"], ["y"], "at")),
            "node at (SequenceAt)",
        ),
        (_sequence(node("Identity", ["s"], ["y"], "it")), "node it (Identity)"),
    ],
)
def test_sequences_are_of_the_device(model: Any, where: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as found:
        bn.onnx.Session(saved(tmp_path, model)).predict(np.ones((2, 4, 5), np.float32))
    rule = "a sequence must be of tensors of the device, made by SplitToSequence and read by SequenceAt alone"
    assert f"{where}: {rule}. Hint: export the network with Split" in str(found.value)


def test_inputs_that_are_no_tensors(tmp_path: Path) -> None:
    model = graph_of([node("SequenceAt", ["s", "k"], ["y"])], {}, {"y": (2, 3)}, {"k": np.array(0)})
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", 1, (2, 3)))
    path = saved(tmp_path, model)
    for read in (bn.onnx.load, bn.onnx.Session):
        with pytest.raises(
            UnsupportedError, match=r"input s: inputs must be tensors. Received type=sequence. Hint: ex"
        ):
            read(path)
