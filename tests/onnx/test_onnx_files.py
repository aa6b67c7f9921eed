"""ONNX files that are damaged, that lie, or that ask for what there is not: errors that say what, and nothing else."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet.errors import BlobnetError, FileError, OptionError
from blobnet.onnx.host import evaluated
from blobnet.onnx.operation import SamplesMixedError, UnsupportedError, ValueNeededError


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may ask for a device."""

    def refused(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a device was asked for")

    monkeypatch.setattr("blobnet.device.device.Device.__init__", refused)


def _small() -> Any:
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "shape": np.array([0, -1], np.int64),
        "m": random.standard_normal((5, 100)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2], strides=[1, 1]),
        helper.make_node("Reshape", ["b", "shape"], ["c"], "flat"),
        helper.make_node("Gemm", ["c", "m"], ["y"], "head", transB=1),
    ]
    return graph_of(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 5)}, constants)


def _one(kind: str, inputs: list[str], constants: dict[str, Any] | None = None, **attributes: Any) -> Any:
    """A model of one node, whose input x has the shape (1, 3, 6, 6)."""
    node = helper.make_node(kind, inputs, ["y"], "it", **attributes)
    return graph_of([node], {"x": (1, 3, 6, 6)}, {"y": None}, constants)


# -- files -----------------------------------------------------------------------------------------------------------


def test_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = saved(tmp_path, _small())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        OptionError, match=r'the package must be installed for ONNX files.*pip install "blobnet\[onnx\]"'
    ):
        bn.onnx.load(path)


def test_file_that_is_missing_or_empty(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").touch()
    rule = r"none\.onnx: there must be such a file\. Hint: in that folder are other\.onnx\.$"
    with pytest.raises(FileError, match=rule):
        bn.onnx.load(tmp_path / "none.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(FileError, match=r"an ONNX file must have some bytes, and less than 2 GiB. Received bytes=0"):
        bn.onnx.load(tmp_path / "empty.onnx")
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(2**31)  # Takes no room on the disk.
    with pytest.raises(FileError, match=r"less than 2 GiB. Received bytes=2147483648"):
        bn.onnx.load(tmp_path / "large.onnx")


def test_what_is_no_onnx_file(tmp_path: Path) -> None:
    model = bn.Sequential([bn.layers.Input(2), bn.layers.Dense(2)])
    model.save(tmp_path / "m.h5")
    rule = r"m\.h5: the file must be an ONNX model, but this is an HDF5 file\. Hint: blobnet\.load reads a model that "
    for use in (bn.onnx.load, bn.onnx.Session):
        with pytest.raises(FileError, match=rule):
            use(tmp_path / "m.h5")
    with pytest.raises(OptionError, match=r"^file: it must be a path: a text, or a pathlib\.Path\."):
        bn.onnx.load(3)  # type: ignore[arg-type]


def test_onnx_files_are_no_model_files(tmp_path: Path) -> None:
    path = saved(tmp_path, _small())
    rule = r"\.onnx: a model file must be HDF5, but this is an ONNX file, by its name\. Received begins=.*\. "
    with pytest.raises(FileError, match=rule + r"Hint: blobnet\.onnx\.load reads it, and so do blobnet plan and "):
        bn.load(path)


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    data = _small().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    bn.onnx.load(path)
    for end in [*range(1, 60, 3), *range(60, len(data) - 1, 97), len(data) - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(FileError):
            bn.onnx.load(path)


def test_files_with_bytes_changed(tmp_path: Path) -> None:
    """Whatever comes of them, a model or an error, it is one of blobnet's."""
    data, random, path = _small().SerializeToString(), np.random.default_rng(5), tmp_path / "model.onnx"
    found = set()
    for _ in range(300):
        changed = np.frombuffer(data, np.uint8).copy()
        places = random.integers(0, len(data), random.integers(1, 6))
        places[::2] = np.where(places[::2] % 2, places[::2] % 900, len(data) - 1 - places[::2] % 300)
        changed[places] = random.integers(0, 256, len(places))
        path.write_bytes(changed.tobytes())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bn.onnx.load(path)
            found.add("model")
        except BlobnetError as error:
            found.add(type(error).__name__)
    assert {"FileError", "model"} <= found


def test_graphs_within_graphs_within_graphs(tmp_path: Path) -> None:
    def field(number: int, value: bytes) -> bytes:
        size, count = b"", len(value)
        while count > 127:
            size, count = size + bytes([count % 128 + 128]), count // 128
        return bytes([number * 8 + 2]) + size + bytes([count]) + value

    graph = b""
    for _ in range(3000):
        graph = field(1, field(5, field(6, graph)))  # A graph with a node with an attribute that is the last graph.
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(FileError, match="the file must be a whole ONNX model"):
        bn.onnx.load(path)


@pytest.mark.parametrize("dims", [(3, 5), (2**40, 2**40), (2**62, 4), (-1, 4), (0, 4)])
def test_tensors_that_lie_about_their_sizes(dims: tuple[int, int], tmp_path: Path) -> None:
    model = _small()
    tensor = model.graph.initializer[2]
    del tensor.dims[:]
    tensor.dims.extend(dims)
    with pytest.raises(BlobnetError):
        bn.onnx.load(saved(tmp_path, model))
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0, 2.0])
    with pytest.raises(BlobnetError):
        bn.onnx.load(saved(tmp_path, model))


def test_weights_that_are_among_the_inputs(tmp_path: Path) -> None:
    """As files before IR version 4 have them: what is done to them is no normalization of the samples."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((5, 4)).astype(np.float32), "two": np.float32(2)}
    nodes = [helper.make_node("Mul", ["w", "two"], ["v"]), helper.make_node("MatMul", ["x", "v"], ["y"], "head")]
    model = graph_of(nodes, {"x": ("N", 5), "w": (5, 4)}, {"y": ("N", 4)}, weights)
    x = random.standard_normal((3, 5)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    net = bn.onnx.load(saved(tmp_path, model))
    np.testing.assert_allclose(x @ net.weights["head/weight"].T, wanted, rtol=1e-5)


def test_sparse_initializers(tmp_path: Path) -> None:
    model = _small()
    dense = model.graph.initializer.pop()
    sparse = model.graph.sparse_initializer.add(dims=dense.dims)
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), dense.name))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 7]), ""))
    with pytest.raises(FileError, match=r"initializers must hold all of their values. Received sparse=1. Hint"):
        bn.onnx.load(saved(tmp_path, model))


def _external(folder: Path, **entries: Any) -> Path:
    """The model with the weights of its head in another file."""
    model = _small()
    tensor = model.graph.initializer[2]
    (folder / "weights.bin").write_bytes(b"abcd" + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": 4, "length": 2000, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return saved(folder, model)


def test_external_data(tmp_path: Path) -> None:
    weights = bn.onnx.load(_external(tmp_path)).weights
    wanted = onnx.numpy_helper.to_array(_small().graph.initializer[2])
    np.testing.assert_array_equal(weights["head/weight"], wanted)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "", ".", "a/../../weights.bin", "link.bin"])
def test_external_data_outside_of_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(4000))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(FileError, match=r"external data must lie in the folder of the model. Received tensor=m, loc"):
        bn.onnx.load(_external(folder, location=location))


@pytest.mark.parametrize("location", ["weights\0.bin", "self.bin", "loop/weights.bin"])
def test_external_data_that_has_no_name_of_a_file(location: str, tmp_path: Path) -> None:
    for link in ("self.bin", "loop"):
        (tmp_path / link).symlink_to(link)
    path = _external(tmp_path, location=location)
    for use in (bn.onnx.load, bn.onnx.Session):
        with pytest.raises(
            FileError, match=r"external data must (have the name of|be) a file.* Received tensor=m, loc"
        ):
            use(path)


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ({"location": "none.bin"}, "external data must be a file"),
        ({"location": "pipe", "length": 0}, "external data must be a file.*cause=it is something else"),
        ({"location": "pipe"}, "external data must be a file"),
        ({"offset": "four"}, "whole numbers for offset and length"),
        ({"offset": 2000}, "external data must lie within its file. Received tensor=m, offset=2000, length=2000"),
        ({"offset": -4}, "external data must lie within its file"),
        ({"length": 10**18}, "external data must lie within its file"),
        ({"length": 400}, "a tensor must have as many values as its shape says"),
    ],
)
def test_external_data_that_is_not_there(entries: dict[str, Any], rule: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match=rule):
        bn.onnx.load(_external(tmp_path, **entries))


# -- graphs ----------------------------------------------------------------------------------------------------------


def test_cycle(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], "first"), helper.make_node("Relu", ["a"], ["b"], "second")]
    path = saved(tmp_path, graph_of(nodes, {"x": (1, 3)}, {"b": (1, 3)}))
    with pytest.raises(FileError, match=r"ONNX's checker accepts.*topologically sorted"):
        bn.onnx.load(path)


def _with_functions(bodies: dict[str, list[str]]) -> Any:
    """A model that calls the first of these functions, which call each other."""
    functions = [
        helper.make_function(
            "own",
            name,
            ["a"],
            ["z"],
            [
                helper.make_node(kind, ["a" if not place else f"v{place}"], [f"v{place + 1}"], domain=domain)
                for place, kind in enumerate(kinds)
                for domain in ("own" if kind in bodies else "",)
            ]
            + [helper.make_node("Identity", [f"v{len(kinds)}"], ["z"])],
            [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        )
        for name, kinds in bodies.items()
    ]
    node = helper.make_node(next(iter(bodies)), ["x"], ["y"], "it", domain="own")
    model = graph_of([node], {"x": (1, 3)}, {"y": (1, 3)})
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.extend(functions)
    return model


def test_functions_are_written_out(tmp_path: Path) -> None:
    model = bn.onnx.load(saved(tmp_path, _with_functions({"F": ["G", "Relu"], "G": ["Neg", "Neg"]})))
    assert [vertex.layer.kind for vertex in model.graph.vertices] == [
        "Input",
        "Contraction",
        "Contraction",
        "Activation",
    ]


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="functions of a model must not call themselves"):
        bn.onnx.load(saved(tmp_path, _with_functions({"F": ["G"], "G": ["F"]})))
    with pytest.raises(FileError, match="functions of a model must not call themselves"):
        bn.onnx.Backend.prepare(_with_functions({"F": ["G"], "G": ["F"]}))


def test_functions_that_do_not_fit_their_calls(tmp_path: Path) -> None:
    model = _with_functions({"F": ["Neg"]})
    model.graph.node[0].input.extend(["x", "x"])
    with pytest.raises(FileError, match=r"the functions of a model must fit their calls. Received cause=.*"):
        bn.onnx.load(saved(tmp_path, model))


def test_operators_that_onnx_cannot_write_out(tmp_path: Path) -> None:
    """Their own nodes are what errors name."""
    node = helper.make_node("LinearAttention", ["x", "x", "x"], ["y"], "it", q_num_heads=1, kv_num_heads=1)
    path = saved(tmp_path, graph_of([node], {"x": (1, 3, 4)}, {"y": None}, opset=onnx.defs.onnx_opset_version()))
    with pytest.raises((UnsupportedError, FileError), match="LinearAttention"):
        bn.onnx.load(path)


def test_attributes_without_a_value(tmp_path: Path) -> None:
    model = _one("DepthToSpace", ["x"], blocksize=1)
    model.graph.node[0].attribute[0].ref_attr_name = "of_no_function"
    model.graph.node[0].attribute[0].ClearField("i")
    with pytest.raises(FileError, match=r"an attribute must have a value. Received attribute=blocksize"):
        bn.onnx.load(saved(tmp_path, model))


def test_functions_that_are_too_much_when_written_out(tmp_path: Path) -> None:
    bodies = {f"F{level}": [f"F{level + 1}"] * 10 for level in range(9)} | {"F9": ["Relu"]}
    with pytest.raises(FileError, match=r"a model may have 100,000 nodes. Received nodes="):
        bn.onnx.load(saved(tmp_path, _with_functions(bodies)))


def test_branches_within_branches(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y0"])], "g", [], [onnx.ValueInfoProto(name="y0")])
    for level in range(1, 25):
        node = helper.make_node("If", ["c"], [f"y{level}"], f"if{level}", then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=f"y{level}")])
        if level == 3:
            few = graph_of([node], {"x": (1, 3)}, {"y3": (1, 3)}, {"c": np.array(True)})
            assert bn.onnx.load(saved(tmp_path, few)).graph.output.layer.kind == "Activation"
        if level == 10:
            break  # Each level doubles the file.
    with pytest.raises(UnsupportedError, match="what decides about branches and trips must be known"):
        bn.onnx.load(saved(tmp_path, _one("If", ["x"], then_branch=_empty(), else_branch=_empty())))


def _empty() -> Any:
    return helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "g", [], [onnx.ValueInfoProto(name="z")])


@pytest.mark.parametrize("version", [0, 999])
def test_operator_sets_that_there_are_not(version: int, tmp_path: Path) -> None:
    model = _small()
    model.opset_import[0].version = version
    rule = rf"the operator set of the model must be one of 1 to \d+. Received opset={version}. Hint: onnx.version_conv"
    with pytest.raises(FileError, match=rule):
        bn.onnx.load(saved(tmp_path, model))
    with pytest.raises(FileError, match=rule):
        bn.onnx.Backend.prepare(model)


# -- operators -------------------------------------------------------------------------------------------------------


def test_operator_that_there_is_not(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("GlobalLpPool", ["a"], ["b"], "norms"),
        helper.make_node("Det", ["b"], ["y"], "det"),
    ]
    path = saved(tmp_path, graph_of(nodes, {"x": (1, 3, 6, 6)}, {"y": None}))
    with pytest.raises(UnsupportedError) as found:
        bn.onnx.load(path)
    assert "node norms (GlobalLpPool): every operator must be one that blobnet has" in str(found.value)
    assert "operator=GlobalLpPool, all_that_lack=GlobalLpPool, Det." in str(found.value)
    assert "Hint: export the network up to the layers before it" in str(found.value)


def test_operator_of_another_domain(tmp_path: Path) -> None:
    model = _one("Relu", ["x"])
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedError, match=r"node it \(com.example.Relu\): every operator"):
        bn.onnx.load(saved(tmp_path, model))
    assert not bn.onnx.Backend.is_compatible(model)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (_one("MaxPool", ["x"], kernel_shape=[9, 9]), "the window must fit the padded input"),
        (_one("MaxPool", ["x"], kernel_shape=[2, 2], pads=[2**40] * 4), "windows must be no larger, and no more"),
        (_one("Conv", ["x", "w"], {"w": np.zeros((4, 2, 3, 3), np.float32)}), "the weights must be"),
        (_one("Reshape", ["x", "s"], {"s": np.array([1, 5, -1])}), "the shape must hold the same values"),
        (_one("Reshape", ["x", "s"], {"s": np.array([1, -1, -1])}), "-1 at most once"),
        (_one("Gather", ["x", "i"], {"i": np.array([7])}, axis=1), "indexes must be within the axis"),
        (_one("GatherND", ["x", "i"], {"i": np.array([[0, 1]])}), "the operator must leave the axis of the samples"),
        (_one("GatherND", ["x", "i"], {"i": np.zeros((2, 5), np.int64)}), "indexes must be of the first axes"),
        (_one("Concat", ["x", "c"], {"c": np.zeros((1, 3, 5, 6), np.float32)}, axis=1), "the same sizes along all"),
        (_one("Add", ["x", "c"], {"c": np.zeros((1, 3, 5, 6), np.float32)}), "shapes must go together"),
        (_one("Transpose", ["x"], perm=[0, 1, 2, 2]), "perm must have each axis once"),
        (_one("Expand", ["x", "s"], {"s": np.array([2**40, 3, 6, 6])}), "the samples' axis must stay"),
        (_one("Expand", ["x", "s"], {"s": np.array([1, 3, 2**60, 6, 6])}), "shapes must go together|samples"),
        (_one("Tile", ["x", "s"], {"s": np.array([1, 2**20, 2**20, 1])}), r"node it \(Tile\): a tensor must "
         r"have at most 2,147,483,648 values a sample\. Received shape=\(1, 1, 1048576, 3, 1048576"),
        (_one("Tile", ["x", "s"], {"s": np.array([1, 0, 1, 1])}), r"of at least 1 .* Received repeats=\(1, 0, 1, 1\)"),
        (_one("Resize", ["x", "", "s"], {"s": np.array([1, 1, 1e9, 1], np.float32)}), "an axis must keep a size"),
        (_one("Dropout", ["x", "r", "t"], {"r": np.float32(0.5), "t": np.array(True)}), "dropout that is at work"),
        (_one("Softmax", ["x"], axis=7), "an axis must be one of the tensor's"),
    ],
)  # fmt: skip
def test_nodes_that_do_not_fit(model: Any, rule: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rule) as found:
        bn.onnx.load(saved(tmp_path, model))
    assert "node it (" in str(found.value)


@pytest.mark.parametrize(
    ("kind", "constants"),
    [
        ("ConstantOfShape", {"s": np.array([2**20, 2**20])}),
        ("ConstantOfShape", {"s": np.array([2**62, 2**62])}),
        ("ConstantOfShape", {"s": np.array([-5])}),
        ("Expand", {"v": np.float32(1), "s": np.array([2**40])}),
        ("Tile", {"v": np.zeros((2, 2), np.float32), "s": np.array([2**30, 2**30])}),
        ("Range", {"a": np.int64(0), "b": np.int64(2**60), "c": np.int64(1)}),
        ("Range", {"a": np.float32(0), "b": np.float32(1), "c": np.float32(0)}),
        ("MatMul", {"a": np.zeros((2**19, 1), np.float32), "b": np.zeros((1, 2**19), np.float32)}),
        ("Add", {"a": np.zeros((2**19, 1), np.float32), "b": np.zeros((1, 2**19), np.float32)}),
    ],
)
def test_constants_that_memory_cannot_hold(kind: str, constants: dict[str, Any], tmp_path: Path) -> None:
    nodes = [helper.make_node(kind, list(constants), ["d"], "big"), helper.make_node("Add", ["x", "d"], ["y"], "it")]
    path = saved(tmp_path, graph_of(nodes, {"x": (1, 3)}, {"y": None}, constants))
    with pytest.raises(
        UnsupportedError, match=r"node big \(\w+\): what the host computes must have a size that memory can hold"
    ):
        bn.onnx.load(path)


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "Tile"])
def test_constants_are_bounded_together(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is small enough; so are all where the file has as many values of its own."""
    monkeypatch.setattr("blobnet.onnx.host.MAX_BYTES", 2**20)
    constants = {"s": np.array([256, 256]), "v": np.zeros((1, 1), np.float32)}
    inputs = ["s"] if kind == "ConstantOfShape" else ["v", "s"]
    nodes = []
    for place in range(5):  # Of 256 KiB each.
        fill = {"value": numpy_helper.from_array(np.float32([place]))} if kind == "ConstantOfShape" else {}
        nodes.append(helper.make_node(kind, inputs, [f"w{place}"], f"make{place}", **fill))
        nodes.append(helper.make_node("MatMul", [f"x{place}", f"w{place}"], [f"x{place + 1}"], f"use{place}"))
    constants = {name: array for name, array in constants.items() if name in inputs}
    model = graph_of(nodes, {"x0": ("N", 256)}, {"x5": None}, constants)
    rule = (
        r"node (make|use)\d \(\w+\): (what the host computes must have a size that memory can hold|the constants and "
    )
    with pytest.raises(UnsupportedError, match=rule + "weights that a file makes may take 2 GiB and four times)"):
        bn.onnx.load(saved(tmp_path, model))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1024, 512), np.float32), "more"))
    assert bn.onnx.load(saved(tmp_path, model)).graph.trainable


@pytest.mark.parametrize("fill", [None, np.array([2.5], np.float32), np.array([-3], np.int64)])
def test_constants_of_one_number_take_no_memory(fill: Any, tmp_path: Path) -> None:
    attributes = {} if fill is None else {"value": numpy_helper.from_array(fill)}
    made = [helper.make_node("ConstantOfShape", ["s"], ["w"], "fill", **attributes)]
    (found,) = evaluated(made[0], 20, {"s": np.array([4, 0, 3])}, "a file")
    (wanted,) = ReferenceEvaluator(graph_of(made, {}, {"w": None}, {"s": np.array([4, 0, 3])})).run(None, {})  # type: ignore[attr-defined]
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    (large,) = evaluated(made[0], 20, {"s": np.array([2**13, 2**13])}, "a file")
    assert large.strides == (0, 0)
    assert large[5, 7] == (0 if fill is None else fill[0])
    if fill is not None and fill.dtype != np.float32:
        return
    nodes = [*made, helper.make_node("Gemm", ["x", "w"], ["y"], "product")]
    model = bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": (1, 5)}, {"y": None}, {"s": np.array([5, 3])})))
    value = 0.0 if fill is None else float(fill[0])
    assert model.weights["product/weight"].tolist() == np.full((3, 5), value).tolist()


def test_weights_that_are_no_constants(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    path = saved(tmp_path, graph_of([node], {"x": (1, 3, 6, 6), "w": (1, 3, 3, 3)}, {"y": None}))
    with pytest.raises(ValueNeededError, match=r"node conv \(Conv\): the input must be known when the model is read"):
        bn.onnx.load(path)


# -- sizes and samples -----------------------------------------------------------------------------------------------


def _open() -> Any:
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"], "pool")
    return graph_of([node], {"x": ("N", 3, "height", "width")}, {"y": None})


def test_axes_without_a_size(tmp_path: Path) -> None:
    path = saved(tmp_path, _open())
    with pytest.raises(OptionError) as found:
        bn.onnx.load(path, sizes={"height": 5})
    message = "input x: every axis but that of the samples must have a size of at least 1. "
    assert message + "Received axes=(N, 3, height, width). Hint: load(..., sizes={'width': 224}), say." in str(
        found.value
    )
    model = bn.onnx.load(path, sizes={"height": 5, "width": 4})
    assert model.graph.input.shape.dimensions == (3, 5, 4)
    model = bn.onnx.load(path, sizes={"x": (7, 3, 6, 2)})
    assert model.graph.input.shape.dimensions == (3, 6, 2)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"hight": 5, "width": 4}, "they must be those of axes or inputs. Received name=hight. Hint: did you mean 'he"),
        ({"height": 0, "width": 4}, "the size of an axis must be an int of at least 1"),
        ({"height": "5", "width": 4}, "the size of an axis must be an int of at least 1"),
        ({"x": (1, 4, 5, 5)}, "the sizes of an input must be those that the file says"),
        ({"x": (1, 3, 5)}, "the sizes of an input must be those that the file says"),
        ({"x": (1, 3, -5, 5)}, "the sizes of an input must be those that the file says"),
        ({"x": (1, 3, 2**20, 2**20)}, "a tensor must have at most 2,147,483,648 values"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rule):
        bn.onnx.load(saved(tmp_path, _open()), sizes=sizes)


def test_inputs_that_are_no_numbers_to_compute_with(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "it")
    path = saved(tmp_path, graph_of([node], {"x": (1, 3)}, {"y": None}, type_=TensorProto.INT64))
    with pytest.raises(BlobnetError, match="inputs must be numbers that a network computes with"):
        bn.onnx.load(path)


@pytest.mark.parametrize(
    "model",
    [
        _one("ReduceMean", ["x"], axes=[0]),
        _one("Reshape", ["x", "s"], {"s": np.array([3, 36])}),
        _one("Transpose", ["x"], perm=[1, 0, 2, 3]),
        _one("Concat", ["x", "x"], axis=0),
        _one("Slice", ["x", "a", "b"], {"a": np.array([0]), "b": np.array([1])}),
        _one("Unsqueeze", ["x", "a"], {"a": np.array([0])}),
        _one("Softmax", ["x"], axis=0),
    ],
)
def test_samples_that_meet(model: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, model)
    with pytest.raises(SamplesMixedError, match=r"(node it|output y).*Hint: load\(..., samples=False\)"):
        bn.onnx.load(path)
    assert bn.onnx.load(path, samples=False).graph.input.shape.dimensions == (1, 3, 6, 6)
