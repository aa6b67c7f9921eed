"""ONNX graphs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper


def graph_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    type_: int = onnx.TensorProto.FLOAT,
) -> Any:
    """A model of these nodes."""
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "test",
            [helper.make_tensor_value_info(name, type_, list(shape)) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def saved(folder: Path, model: Any) -> Path:
    """The model in a file."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
