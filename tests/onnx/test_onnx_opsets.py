"""One network as each operator set writes it, from the oldest that is read to the newest."""

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
from blobnet.onnx.reading import OLDEST_OPSET

#: The first operator sets of forms that change: numbers that become inputs, and what a sum over axes is called.
_NUMBERS = {"Clip": 11, "Pad": 11, "Slice": 10, "Split": 13, "Squeeze": 13, "ReduceMean": 18}


def _network(opset: int) -> Any:
    """A convolution, a norm, limits, an edge, a pool, more places, a part, groups in another order, means, a head."""
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "w": random.standard_normal((6, 3, 3, 3)).astype(np.float32) / 2,
        "variance": random.uniform(0.5, 1.5, 6).astype(np.float32),
        "head": random.standard_normal((6, 5)).astype(np.float32),
        "none": np.zeros(5, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "roi": np.zeros(0, np.float32),
    }
    constants |= {name: random.standard_normal(6).astype(np.float32) for name in ("scale", "shift", "mean")}
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, numbers: dict[str, Any] | None = None, outputs: int = 1, **attributes: Any) -> Any:
        """A node, whose numbers are attributes or inputs."""
        names = [f"v{len(nodes)}_{place}" for place in range(outputs)]
        if numbers and opset >= _NUMBERS[kind]:
            own = {f"{kind}{len(nodes)}_{name}": np.asarray(values) for name, values in numbers.items()}
            constants.update(own)
            inputs += tuple(own)
        else:
            attributes |= numbers or {}
        nodes.append(helper.make_node(kind, [*inputs], names, f"n{len(nodes)}", **attributes))
        return names if outputs > 1 else names[0]

    value = add("Conv", "x", "w", pads=[1] * 4)
    value = add("BatchNormalization", value, "scale", "shift", "mean", "variance")
    value = add("Clip", value, numbers={"min": np.float32(0), "max": np.float32(6)})
    value = add("Pad", value, numbers={"pads": [0, 0, 1, 1, 0, 0, 1, 1], "value": np.float32(0.5)})
    value = add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    if opset < 9:
        value = add("Upsample", value, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    elif opset < 11:
        value = add("Upsample" if opset == 9 else "Resize", value, "scales", mode="nearest")
    else:
        value = add("Resize", value, "roi", "scales", mode="nearest")
    value = add("Slice", value, numbers={"starts": [1, 0], "ends": [9, -1], "axes": [2, 3]})
    first, second = add("Split", value, numbers={"split": [2, 4]}, outputs=2, axis=1)
    value = add("Concat", second, first, axis=1)
    value = add("Dropout", value)
    value = add("ReduceMean", value, numbers={"axes": [2, 3]}, keepdims=1)
    value = add("Squeeze", value, numbers={"axes": [2, 3]})
    value = add("Gemm", value, "head", "none")
    value = add("Softmax", value, axis=1)
    model = graph_of(nodes, {"x": ("N", 3, 8, 8)}, {value: ("N", 5)}, constants, opset=opset)
    model.ir_version = 8 if opset < 21 else 10
    return model


def test_every_operator_set_says_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    newest = onnx.defs.onnx_opset_version()
    (wanted,) = ReferenceEvaluator(_network(newest)).run(None, {"x": x})
    assert np.ptp(wanted) > 0.1
    for opset in range(OLDEST_OPSET, newest + 1):
        model = bn.onnx.load(saved(tmp_path, _network(opset)))
        np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-4, atol=1e-6, err_msg=f"operator set {opset}")
        assert {"n0/weight", "n1/scale", "n1/shift"} < set(model.graph.trainable)
