"""ONNX files as they run: a network on the device for each set of sizes, and what follows it on the host."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.model import Model
from blobnet.network.ends import to_dict, to_list
from blobnet.onnx.bodies import run_tail
from blobnet.onnx.host import Late
from blobnet.onnx.importer import (
    SAMPLE_TYPES,
    Import,
    Sizes,
    axes_of,
    check_operators,
    compare_shapes,
    import_for,
    input_shape,
    inputs_of,
    sizes_by_name,
)
from blobnet.onnx.operation import SESSION_HINT, OpenAxisError, SamplesMixedError, ValueNeededError
from blobnet.onnx.reading import array_of, package, read
from blobnet.onnx.values import Array, Tensor, whole

if TYPE_CHECKING:
    from onnx import ModelProto

#: Networks that a session keeps, one for each set of sizes and known values.
MAX_NETWORKS = 8


@dataclass(frozen=True, eq=False)
class Network:
    """The network of a file for inputs of some sizes.

    Attributes:
        model: of the device; None where the host computes everything. Its outputs are those that the tail reads, and
            outputs of the file.
        tail: the nodes that the host computes after it, in order: "boxes (NonMaxSuppression)".
    """

    model: Model | None
    tail: tuple[str, ...]
    _imported: Import
    #: The tensors that the model's outputs are, in their order.
    _given: tuple[Tensor, ...]

    @classmethod
    def of(cls, imported: Import) -> Network:
        """The network of a reading of a graph."""
        entries = list(imported.inputs.values())
        names = {value: name for name, value in imported.outputs.items() if isinstance(value, Tensor)}
        for node in imported.tail:
            for name, value in node.inputs.items():
                if isinstance(value, Tensor) and value not in entries:
                    names.setdefault(value, name)
        model = imported.model({name: tensor for tensor, name in names.items()}) if names else None
        return cls(model, tuple(node.text for node in imported.tail), imported, tuple(names))

    def _fits(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if it is that for these inputs: their sizes, and the values that had to be known."""
        shapes, known = self._imported.shapes, self._imported.known
        return all(
            shapes[name] == array.shape
            if name in shapes
            else array.dtype == known[name].dtype
            and np.array_equal(array, known[name], equal_nan=array.dtype.kind == "f")
            for name, array in arrays.items()
        )

    def _run(self, arrays: Mapping[str, Array], device: Device) -> dict[str, Array]:
        """The values of the file's outputs."""
        imported = self._imported
        results: dict[Tensor | Late, Array] = {tensor: arrays[name] for name, tensor in imported.inputs.items()}
        if self.model is not None:
            count = -1 if imported.samples else 1
            batch = [
                arrays[name].reshape(count, *vertex.shape.dimensions)
                for name, vertex in zip(imported.entered, self.model.graph.inputs.values(), strict=True)
            ]
            found = self.model.predict(batch if len(batch) > 1 else batch[0], device=device)
            values = found.values() if isinstance(found, dict) else [found]
            results |= {tensor: whole(tensor, value) for tensor, value in zip(self._given, values, strict=True)}
        run_tail(imported.tail, results)
        return {
            name: results[value] if isinstance(value, Tensor | Late) else value
            for name, value in imported.outputs.items()
        }


class Session:
    """An ONNX file that runs on arrays of any sizes.

    What sizes the inputs have decides which network a file is, and what has to be planned: there is a :class:`Network`
    for each set of sizes, the number of samples among them, of which the last 8 are kept, with their memory on the
    device. The first prediction of new sizes takes as long as ``bn.onnx.load``. A file of fixed sizes, which is to be
    trained or to predict many samples, is better read by that.

    The network ends where an operator begins that is none of the device's: a detector's NonMaxSuppression or TopK, say.
    That and all that depends on it is the file's tail, which the host computes, in NumPy. Inputs whose values an
    operator must know, sizes for instance, decide about the network as sizes do; so do whole numbers of 32 and 64 bits.

    ``session.predict(image)`` gives what ``Model.predict`` does: an array, or arrays by the outputs' names.

    Args:
        file: its path; or an ``onnx.ModelProto``, of which all data was read.
        subject: its name in errors; the path by default.
        device: where networks run: a device or its name; the best one by default.

    Attributes:
        device: the same.
        inputs: their axes, by name: sizes, and names of those that are open, "?" if they have none.
        outputs: their names.

    Raises:
        FileError: the file is missing, damaged or of an operator set that cannot be read.
        UnsupportedError: an operator is none that blobnet has; before anything is built.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | ModelProto,
        *,
        subject: str | None = None,
        device: Device | str | None = None,
    ) -> None:
        self._subject = subject or (str(file) if isinstance(file, str | os.PathLike) else "onnx.Session")
        self._proto: Any = read(file, self._subject)
        self.device = device
        graph = self._proto.graph
        check_operators(graph, self._subject)
        self._inputs = {item.name: item for item in inputs_of(graph, self._subject)}
        self.inputs = {name: axes_of(item.type.tensor_type.shape.dim) for name, item in self._inputs.items()}
        self.outputs = tuple(item.name for item in graph.output)
        self._types = {item.name: item.type.tensor_type.elem_type for item in graph.output}
        #: Networks of all sizes have these.
        self._constants = {item.name: array_of(item, self._subject) for item in graph.initializer}
        self._networks: list[Network] = []  # The latest comes last.
        self._lock = threading.Lock()

    def predict(self, x: Any) -> Any:
        """The outputs for an array, or for arrays of several inputs, by name or in a list in their order.

        Inputs have the shapes and types that the file says, of any sizes on axes that it leaves open. Real numbers of
        other types are converted, where nothing but precision is lost.

        Returns:
            The array of the only output, or {name: array}, with the shapes and types of ONNX.

        Raises:
            OptionError: there is not an array for each input, one does not have the shape or the type of the file, or
                an operator cannot be run on these.
        """
        given = to_list(list(self._inputs), x, f"{self._subject}, predict", "input")
        arrays = {
            name: self._checked(item, self._array(name, values))
            for (name, item), values in zip(self._inputs.items(), given, strict=True)
        }
        found = self._run(arrays)
        return to_dict(found, list(found.values()))

    def run(self, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, Array]:
        """The outputs, by name, for an array for each input, in order or by name, as they are.

        Raises:
            OptionError: there is not an array for each input, or an operator cannot be run on these.
        """
        names = list(inputs) if isinstance(inputs, Mapping) else list(self._inputs)[: len(inputs)]
        if sorted(names) != sorted(self._inputs) or len(inputs) != len(self._inputs):
            rule = "there must be an array for each input"
            raise OptionError(self._subject, rule, inputs=", ".join(self._inputs), received=len(inputs))
        values = inputs.values() if isinstance(inputs, Mapping) else inputs
        arrays = {name: self._array(name, value) for name, value in zip(names, values, strict=True)}
        return self._run({name: arrays[name] for name in self._inputs})

    def network(self, sizes: Sizes | Sequence[int] | None = None) -> Network:
        """Return the network for inputs of these sizes and any number of samples: to be looked at, planned or trained.

        ``sizes`` are as for ``bn.onnx.load``.

        Raises:
            OptionError: an axis has no size, or an operator must know the value of an input.
        """
        known = sizes_by_name(list(self._inputs.values()), sizes, self._subject)
        settings: dict[str, Any] = {"has_tail": True, "constants": self._constants}
        try:
            imported = _first(partial(import_for, self._proto, self._subject, known, **settings))
        except OpenAxisError as error:  # Of which load says how load is called, and that there are sessions.
            own = (
                str(error).rpartition("Hint: ")[2].replace("load(..., ", "session.network(").removesuffix(SESSION_HINT)
            )
            raise error.with_hint(own.strip()) from error
        except ValueNeededError as error:
            raise error.with_hint("session.predict runs the file: it is given the value.") from error
        compare_shapes(self._proto.graph, imported.outputs, self._subject)
        return Network.of(imported)

    def _array(self, name: str, values: Any) -> Array:
        """The array that values for an input are."""
        try:
            return np.asarray(values)
        except ValueError as error:
            rule = "the values must be an array: numbers in rows of one length"
            raise OptionError(f"{self._subject}, input {name}", rule, cause=error) from error

    def _checked(self, item: Any, array: Array) -> Array:
        """An array for an input, in the input's type."""
        subject = f"{self._subject}, input {item.name}"
        wanted = package().helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise OptionError(
                subject, "the array must be of the type that the file says", type=wanted, array=array.dtype
            )
        if item.type.tensor_type.HasField("shape"):
            input_shape(item, {item.name: array.shape}, self._subject, 0)
        return array.astype(wanted, copy=False)

    def _run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, in the types that the file says."""
        with self._lock:
            if not isinstance(self.device, Device):
                self.device = Device(self.device)
            device = self.device
            found = next((network for network in self._networks if network._fits(arrays)), None)
            if found is None:
                imported = self._imported(arrays)
                if not self._networks:  # Of the first sizes alone: others would be told again and again.
                    compare_shapes(self._proto.graph, imported.outputs, self._subject)
                found = Network.of(imported)
            others = [network for network in self._networks if network is not found]
            self._networks = [*others, found][-MAX_NETWORKS:]
        results = found._run(arrays, device)
        for name, kind in self._types.items():
            if kind:
                wanted = package().helper.tensor_dtype_to_np_dtype(kind)
                results[name] = results[name].astype(wanted, copy=False)
        return results

    def _imported(self, arrays: Mapping[str, Array]) -> Import:
        """The reading for inputs of these sizes, with as few known values as operators need."""
        known = {name for name, array in arrays.items() if not _enters(array)}
        while True:
            shapes = {name: array.shape for name, array in arrays.items() if name not in known}
            values = {name: arrays[name].copy() for name in known}
            build = partial(
                Import, self._proto, self._subject, values, shapes, has_tail=True, constants=self._constants
            )
            try:
                return _first(build)
            except ValueNeededError as error:
                new = (error.inputs & arrays.keys()) - known
                if not new:
                    raise
                known |= new


def _first(build: Callable[..., Import]) -> Import:
    """A reading whose samples are on axis 0; or else of tensors that are one sample each.

    Where neither can be, as operators of both kinds are there, the host does what lets samples meet.
    """
    with contextlib.suppress(SamplesMixedError):
        return build(samples=True)
    with contextlib.suppress(SamplesMixedError):
        return build(samples=False)
    return build(samples=True, mixes=True)


def _enters(array: Array) -> bool:
    """Return True if an input can enter a network: some finite numbers."""
    return array.dtype.name in SAMPLE_TYPES and array.size > 0 and bool(np.isfinite(array).all())
