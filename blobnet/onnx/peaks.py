"""Boxes by the peaks of heat maps, as nodes of ONNX: what ``blobnet.losses.center_net.boxes_of`` does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from blobnet.losses.center_net import BOX_UNITS
from blobnet.memory.blob import Shape
from blobnet.onnx.reading import package

#: The names of what a file gives in place of the model's output.
NAMES = ("boxes", "scores", "classes")


def add_peaks(graph: Any, shape: Shape, most: int) -> None:
    """Replaces the output of an ``onnx.GraphProto`` by ``boxes``, ``scores`` and ``classes``.

    They are (N, most, 4), the sides as parts of the picture, and (N, most), the latter int64.

    Args:
        graph: with one output, of the loss CenterNet.
        shape: of that for a sample.
        most: boxes of a sample, at most as many as there are cells of heat maps.
    """
    onnx, numbers = package(), itertools.count()
    (classes, (height, width)), cells = (shape.units - BOX_UNITS, shape.sizes), shape.positions
    most = min(most, classes * cells)

    def node(operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        made = [f"peaks/{operator}_{next(numbers)}" for _ in range(outputs)]
        graph.node.append(onnx.helper.make_node(operator, inputs, made, name=made[0], **attributes))
        return made

    def one(operator: str, *inputs: str, **attributes: Any) -> str:
        return node(operator, *inputs, **attributes)[0]

    def array(values: Any, kind: Any = np.int64) -> str:
        name = f"peaks/constant_{next(numbers)}"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, kind), name))
        return name

    heat, sides = node("Split", graph.output[0].name, array([classes, BOX_UNITS]), outputs=2, axis=1)
    around = one("MaxPool", heat, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    peaks = one("Where", one("Equal", heat, around), heat, array(-np.inf, np.float32))
    logits, places = node("TopK", one("Reshape", peaks, array([0, -1])), array([most]), outputs=2, axis=1)
    cell = one("Unsqueeze", one("Mod", places, array(cells)), array([1]))
    flat = one("Reshape", sides, array([0, BOX_UNITS, cells]))
    values = one("GatherElements", flat, one("Tile", cell, array([1, BOX_UNITS, 1])), axis=2)
    wide, high, x, y = node("Split", values, array([1] * BOX_UNITS), outputs=4, axis=1)
    corners = []
    for middle, size, length, operator in ((x, wide, width, "Mod"), (y, high, height, "Div")):
        start = one("Cast", one(operator, cell, array(width)), to=onnx.TensorProto.FLOAT)
        middle = one("Div", one("Add", middle, start), array(length, np.float32))
        half = one("Div", size, array(2 * length, np.float32))
        corners += [one(sign, middle, half) for sign in ("Sub", "Add")]
    left, right, top, bottom = corners
    inside = one("Clip", one("Concat", left, top, right, bottom, axis=1), array(0, np.float32), array(1, np.float32))
    results = one("Transpose", inside, perm=[0, 2, 1]), one("Sigmoid", logits), one("Div", places, array(cells))
    batch = graph.output[0].type.tensor_type.shape.dim[0].dim_param
    del graph.output[:]
    kinds = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    for name, value, kind, axes in zip(NAMES, results, kinds, ((most, 4), (most,), (most,)), strict=True):
        graph.node.append(onnx.helper.make_node("Identity", [value], [name], name=name))
        graph.output.append(onnx.helper.make_tensor_value_info(name, kind, [batch, *axes]))
