"""ONNX's own interface to what runs its models: ``onnx.backend.base``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep

from blobnet.device import Device, choose
from blobnet.errors import BlobnetError, DeviceError, FileError, OptionError
from blobnet.model import Model
from blobnet.onnx.importer import Import, check_operators
from blobnet.onnx.operation import SamplesMixedError, ValueNeededError
from blobnet.onnx.reading import check, written_out
from blobnet.onnx.values import Array, Tensor, Value

_SUBJECT = "onnx.Backend"
#: Models that are kept, one for each set of sizes and known values.
MOST_PLANS = 8


class Prepared(BackendRep):
    """A model that runs on arrays of any sizes.

    What sizes and whole numbers an ONNX graph gets decides which network it is: there is a model for each set of them,
    of which the last MOST_PLANS are kept. Inputs that are no numbers with a fraction are known, and so are those whose
    values an operator needs (weights that are inputs, say); all others enter the network. Axis 0 is taken for the
    samples where all operators leave it alone, and all of a tensor for one sample otherwise.
    """

    def __init__(self, proto: Any, device: Device) -> None:
        self._proto = proto
        self._device = device
        known = {item.name for item in proto.graph.initializer}
        self._inputs = [item.name for item in proto.graph.input if item.name not in known]
        self._plans: OrderedDict[int, tuple[Import, Model | None]] = OrderedDict()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs for one array for each input, in order, or for arrays by name.

        Raises:
            OptionError: there is not an array for each input, or an operator cannot be run on these.
        """
        names = list(inputs) if isinstance(inputs, dict) else self._inputs[: len(inputs)]
        if sorted(names) != sorted(self._inputs) or len(inputs) != len(self._inputs):
            rule = "there must be an array for each input"
            raise OptionError(_SUBJECT, rule, inputs=", ".join(self._inputs), received=len(inputs))
        values = inputs.values() if isinstance(inputs, dict) else inputs
        arrays = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        imported, model = self._plan({name: arrays[name] for name in self._inputs})
        results: dict[str, Array] = {}
        if model is not None:
            batch = [
                arrays[name].reshape(-1 if imported.samples else 1, *shape.dimensions)
                for name, shape in zip(
                    imported.entered, (item.shape for item in model.graph.inputs.values()), strict=True
                )
            ]
            found = model.predict(batch if len(batch) > 1 else batch[0], device=self._device)
            tensors = [name for name, value in imported.outputs.items() if isinstance(value, Tensor)]
            results = dict(zip(tensors, found.values() if isinstance(found, dict) else [found], strict=True))
        return tuple(self._result(name, value, results.get(name), imported) for name, value in imported.outputs.items())

    def _result(self, name: str, value: Value, result: Array | None, imported: Import) -> Array:
        """An output as ONNX has it."""
        if not isinstance(value, Tensor):
            return value
        assert result is not None
        kind = next(item.type.tensor_type.elem_type for item in self._proto.graph.output if item.name == name)
        wanted = onnx.helper.tensor_dtype_to_np_dtype(kind) if kind else value.type
        array = result.reshape(-1, *value.axes[1:]) if imported.samples else result.reshape(value.axes)
        return array != 0 if wanted == np.bool_ else array.astype(wanted)

    def _plan(self, arrays: Mapping[str, Array]) -> tuple[Import, Model | None]:
        """The network for these sizes and known values."""
        for key, (imported, model) in self._plans.items():
            if all(
                imported.shapes[name] == array.shape
                if name in imported.shapes
                else array.dtype == imported.known[name].dtype
                and np.array_equal(array, imported.known[name], equal_nan=array.dtype.kind == "f")
                for name, array in arrays.items()
            ):
                self._plans.move_to_end(key)
                return imported, model
        known = {name for name, array in arrays.items() if not _enters(array)}
        samples = True
        while True:
            shapes = {name: array.shape for name, array in arrays.items() if name not in known}
            values = {name: arrays[name].copy() for name in known}
            try:
                imported = Import(self._proto, _SUBJECT, values, shapes, samples=samples)
                break
            except ValueNeededError as error:
                new = (error.inputs & arrays.keys()) - known
                if not new:
                    raise
                # Without these, samples may be found where they were not.
                known, samples = known | new, True
            except SamplesMixedError:
                if not samples:
                    raise
                samples = False
        tensors = {name: value for name, value in imported.outputs.items() if isinstance(value, Tensor)}
        model = imported.model(tensors) if tensors else None
        self._plans[id(imported)] = imported, model
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return imported, model


class Backend(_Backend):
    """blobnet as ``onnx.backend.base.Backend``: what runs models and nodes, and ONNX's own tests of such.

    Devices are ONNX's: "CPU" is a CPU and "CUDA" a GPU of OpenCL, of several the one that blobnet chooses; any other
    text names a device as ``$BLOBNET_DEVICE`` does.
    """

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether there is such a device, and all operators of a model are known."""
        try:
            check(model, _SUBJECT)
            check_operators(written_out(model).graph, _SUBJECT)
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
        check(model, _SUBJECT)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise FileError(_SUBJECT, "ONNX's checker must accept the model", cause=error) from error
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
        ends = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        opsets = [onnx.helper.make_opsetid("", version)]
        graph = onnx.helper.make_graph([node], "node", entries, ends)
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        check(model, _SUBJECT)
        return _prepared(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether OpenCL has a device of ONNX's kind, or name."""
        try:
            choose(_name(device))
        except DeviceError:
            return False
        return True


def _prepared(model: Any, device: str) -> Prepared:
    proto = written_out(model)
    check_operators(proto.graph, _SUBJECT)
    return Prepared(proto, _device(_name(device)))


def _name(device: str) -> str | None:
    """What blobnet calls one of ONNX's devices: None where it would choose one of that kind anyway."""
    kind = {"CPU": "cpu", "CUDA": "gpu"}.get(device.partition(":")[0])
    if kind is None:
        return device
    try:
        return None if choose().kind == kind else kind
    except DeviceError:
        return kind


def _enters(array: Array) -> bool:
    """Whether an input can enter a network: some finite numbers."""
    return array.dtype == np.float32 and array.size > 0 and bool(np.isfinite(array).all())


_device = lru_cache(4)(Device)
