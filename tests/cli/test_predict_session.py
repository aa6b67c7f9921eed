"""blobnet predict of ONNX files that run as sessions: open sizes, tails, several outputs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet.command_line import predict_session
from blobnet.errors import OptionError

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
Image = pytest.importorskip("PIL.Image")

helper, node = onnx.helper, onnx.helper.make_node


def _saved(name: str, nodes: list[Any], inputs: list[Any], outputs: dict[str, int], constants: dict[str, Any]) -> Any:
    """A model in a file."""
    ends = [helper.make_tensor_value_info(output, kind, None) for output, kind in outputs.items()]
    arrays = [onnx.numpy_helper.from_array(np.asarray(values), key) for key, values in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, ends, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, name)
    return model


def _detector(axes: tuple[Any, ...], *, is_last: bool = False) -> Any:
    """Pictures of any size, scaled by the file, to boxes that no better one overlaps; one for each position."""
    random = np.random.default_rng(0)
    constants = {
        "mean": np.full((1, 3, 1, 1), 127.5, np.float32),
        "w": random.standard_normal((5, 3, 3, 3)).astype(np.float32),
        "rows": np.array([0, 5, -1]),
        "parts": np.array([4, 1]),
        "most": np.array([3]),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.0], np.float32),
    }
    nodes = [
        node("Transpose", ["image"], ["first"], "first", perm=[0, 3, 1, 2] if is_last else [0, 1, 2, 3]),
        node("Sub", ["first", "mean"], ["a"], "sub"),
        node("Div", ["a", "mean"], ["b"], "div"),
        node("Conv", ["b", "w"], ["c"], "conv", strides=[2, 2]),
        node("Reshape", ["c", "rows"], ["d"], "rows"),
        node("Split", ["d", "parts"], ["places", "scores"], "apart", axis=1),
        node("Transpose", ["places"], ["boxes"], "boxes", perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["found"], "nms"),
    ]
    inputs = [helper.make_tensor_value_info("image", 1, axes)]
    return _saved("detector.onnx", nodes, inputs, {"found": 7, "scores": 1}, constants)


def _picture(name: str, height: int, width: int) -> np.ndarray:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(name)
    return pixels


@pytest.mark.parametrize("is_last", [False, True])
def test_a_detector_of_pictures_of_any_size(run: Any, is_last: bool) -> None:
    axes = (1, "h", "w", 3) if is_last else (1, 3, "h", "w")
    evaluator = reference.ReferenceEvaluator(_detector(axes, is_last=is_last))
    Path("street").mkdir()
    wanted = []
    for name, size in (("street/a.png", (9, 12)), ("street/b.png", (11, 7))):
        pixels = _picture(name, *size).astype(np.float32)[None]
        wanted.append(evaluator.run(None, {"image": pixels if is_last else pixels.transpose(0, 3, 1, 2)}))
    result = run("predict", "detector.onnx", "street", "--npz", "said.npz")
    assert (result.status, result.err, result.out) == (0, "", "outputs for 2 files; saved said.npz\n")
    with np.load("said.npz") as said:
        assert sorted(said) == ["found/0", "found/1", "scores/0", "scores/1"]
        for number, (found, scores) in enumerate(wanted):
            assert len(found) == 3
            np.testing.assert_array_equal(said[f"found/{number}"], found)
            np.testing.assert_allclose(said[f"scores/{number}"], scores, rtol=1e-3, atol=1e-4)
    result = run("predict", "detector.onnx", "street/b.png")
    printed = result.out.split("\n")
    assert printed[:2] == ["street/b.png", f"  found: int64 {wanted[1][0].shape}"]
    assert [int(number) for number in re.findall(r"\d+", " ".join(printed[2:5]))] == wanted[1][0].ravel().tolist()
    assert f"  scores: float32 {wanted[1][1].shape}" in printed
    # One file has the names as they are.
    assert run("predict", "detector.onnx", "street/b.png", "--npz", "one.npz").status == 0
    with np.load("one.npz") as said:
        np.testing.assert_array_equal(said["found"], wanted[1][0])


def test_what_a_session_does_not_write_or_read(run: Any) -> None:
    _detector((1, 3, "h", 12))
    _picture("a.png", 9, 12)
    for option, value in (
        ("csv", "a.csv"),
        ("json", "a.json"),
        ("masks", "masks"),
        ("boxes", "boxes"),
        ("explain", "said"),
        ("tta", "flip"),
    ):
        result = run("predict", "detector.onnx", "a.png", f"--{option}", value)
        rule = f"error: --{option}: the model must give classes: this file runs as a session, whose outputs may be any"
        assert (result.status, result.out) == (1, "")
        assert result.err.startswith(rule)
        assert "Hint: --npz FILE writes all outputs" in result.err
        assert not Path(value).exists()
    given = dict.fromkeys(("csv", "json", "masks", "boxes", "explain", "tta"))
    options = argparse.Namespace(**given, precision="tf32", file="detector.onnx")
    with pytest.raises(
        OptionError, match=r"--precision: a file that runs as a session computes in fp32. Received prec"
    ):
        predict_session.run(options)
    # What cannot be read costs the status, and not the others.
    Path("b.png").write_bytes(b"no picture")
    np.save("c.npy", np.zeros((3, 9, 11), np.float32))
    result = run("predict", "detector.onnx", "none.png", "b.png", "c.npy", "a.png")
    assert result.status == 1
    assert "a.png\n  found: int64" in result.out
    errors = result.err.splitlines()
    assert errors[0] == "error: none.png: there must be such a file."
    assert errors[1].startswith("error: b.png: ")
    assert (
        "input image: the sizes of an input must be those that the file says. Received sizes=(1, 3, 9, 11)" in errors[2]
    )
    assert len(errors) == 3
    assert "--npz: it must name a file of its own" in run("predict", "detector.onnx", "a.png", "--npz", "a.png").err
    unknown = onnx.load("detector.onnx")
    unknown.graph.node[3].op_type = "DeformConv"
    unknown.graph.node[3].input.append("mean")
    unknown.opset_import[0].version = 19
    onnx.save(unknown, "unknown.onnx")
    assert "node conv (DeformConv): every operator must be one that blobnet has" in (
        run("predict", "unknown.onnx", "a.png").err
    )


def test_arrays_by_the_names_of_several_inputs(run: Any) -> None:
    """One of which is a size, which the file must know."""
    nodes = [
        node("Resize", ["x", "", "", "size"], ["a"], "resize", mode="nearest"),
        node("ReduceMax", ["a"], ["y"], "most", axes=[1], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", 1, ("N", 2, 4, "w")),
        helper.make_tensor_value_info("size", 7, (4,)),
    ]
    model = _saved("two.onnx", nodes, inputs, {"y": 1}, {})
    arrays = {
        "x": np.random.default_rng(0).standard_normal((2, 2, 4, 3)).astype(np.float32),
        "size": np.array([2, 2, 8, 6]),
    }
    (wanted,) = reference.ReferenceEvaluator(model).run(None, arrays)
    np.savez("in.npz", **arrays)
    Path("folder").mkdir()
    for name, values in arrays.items():
        np.save(f"folder/{name}.npy", values)
    for source in ("in.npz", "folder"):
        result = run("predict", "two.onnx", source, "--npz", "out.npz")
        assert (result.status, result.err) == (0, "")
        with np.load("out.npz") as said:
            np.testing.assert_allclose(said["y"], wanted, rtol=1e-5)
    np.savez("part.npz", x=arrays["x"])
    _picture("a.png", 4, 4)
    result = run("predict", "two.onnx", "part.npz", "a.png")
    assert "part.npz: it must hold an array for each input. Received missing=['size'], found=['x']" in result.err
    assert "a.png: for a model with several inputs it must be a .npz or an HDF5 file, or a folder" in result.err
