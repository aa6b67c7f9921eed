"""ONNX's own interface to what runs its models: ``onnx.backend.base``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep

from blobnet.device.device import Device
from blobnet.device.discovery import choose
from blobnet.errors import BlobnetError, DeviceError, OptionError
from blobnet.onnx.session import Session
from blobnet.onnx.values import Array

_SUBJECT = "onnx.Backend"


class Prepared(BackendRep):
    """A model that runs on arrays of any sizes: a Session under ONNX's names."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs for one array for each input, in order, or for arrays by name.

        Raises:
            OptionError: there is not an array for each input, or an operator cannot be run on these.
        """
        return tuple(self._session.run(inputs).values())


class Backend(_Backend):
    """blobnet as ``onnx.backend.base.Backend``, which runs models and nodes, and ONNX's own tests of them.

    Devices are ONNX's: "CPU" is a CPU and "CUDA" a GPU of OpenCL, of several the one that blobnet chooses; any other
    text names a device as ``$BLOBNET_DEVICE`` does.
    """

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Return True if there is such a device, and all operators of a model are known."""
        try:
            Session(model, subject=_SUBJECT)
        except BlobnetError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        """A model, an ``onnx.ModelProto``, made ready for :meth:`Prepared.run`.

        Raises:
            FileError: ONNX's checker refuses the model, or its operator set is none of those that can be read.
            UnsupportedError: an operator is none that blobnet has.
            DeviceError: there is no such device.
        """
        return _prepared(model, device)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """The outputs of a model for these inputs: :meth:`prepare`, and run."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """The outputs of a single node, an ``onnx.NodeProto``, for an array for each of its inputs.

        ``opset_version`` is that of the operator, the newest by default; ``outputs_info`` is not asked for.
        """
        super().run_node(node, inputs, device, outputs_info, **kwargs)  # Which checks it.
        arrays = [np.asarray(array) for array in inputs]
        names = [name for name in node.input if name]
        if len(names) != len(arrays):
            raise OptionError(_SUBJECT, "there must be an array for each input", inputs=names, arrays=len(arrays))
        kinds = [onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
        entries = [
            onnx.helper.make_tensor_value_info(name, kind, array.shape)
            for name, kind, array in zip(names, kinds, arrays, strict=True)
        ]
        # What the outputs are follows from the node.
        ends = [onnx.helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        opsets = [onnx.helper.make_opsetid("", version)]
        graph = onnx.helper.make_graph([node], "node", entries, ends)
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        return _prepared(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if OpenCL has a device of ONNX's kind, or name."""
        try:
            choose(_name(device))
        except DeviceError:
            return False
        return True


def _prepared(model: Any, device: str) -> Prepared:
    session = Session(model, subject=_SUBJECT)
    session.device = _device(_name(device))
    return Prepared(session)


def _name(device: str) -> str | None:
    """Return blobnet's name for one of ONNX's devices; None if it would choose one of that kind anyway."""
    kind = {"CPU": "cpu", "CUDA": "gpu"}.get(device.partition(":")[0])
    if kind is None:
        return device
    try:
        return None if choose().kind == kind else kind
    except DeviceError:
        return kind


_device = lru_cache(4)(Device)
