"""Functions of the language, as users hold them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blobnet.contraction import analysis
from blobnet.contraction.binding import bind
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program, Shape
from blobnet.contraction.reference import Array, run
from blobnet.contraction.syntax import Name, names_in, parse
from blobnet.errors import ContractionError, DataError, OptionError, near_matches
from blobnet.support import running

if TYPE_CHECKING:
    from blobnet.device.device import Device


def function(text: str, /, **sizes: int) -> Function:
    """The function that ``text`` says.

    Args:
        text: in the language of :mod:`blobnet.contraction`.
        sizes: whole numbers for names in it that are the size of no input: strides, the filters of a layer.

    Raises:
        ContractionError: the text makes no sense; the message ends in the line, with carets under the place.
        OptionError: the text is no string; one of ``sizes`` is no whole number, or no name of the text.
    """
    if not isinstance(text, str):
        raise OptionError("text", "a contraction must be a string", text=repr(text))
    return Function(text, sizes)


class Function:
    """A function from arrays to arrays, of any shapes that fit its text. Made by :func:`function`.

    Called with arrays it runs on a device, which takes :meth:`program` or :meth:`gradient_program` and does what
    :func:`blobnet.contraction.reference.run` does with them.
    """

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        self.text = text
        self._tree = parse(text)
        self.sizes = {name: self._size(name, size) for name, size in sizes.items()}
        self.inputs = tuple(given.name for given in self._tree.parameters)
        self.outputs = tuple(name.name for name in self._tree.outputs)

    @property
    def heads(self) -> dict[str, tuple[str | int, ...] | None]:
        """The sizes of every input as the head has them, names and whole numbers; None for one of any shape."""
        found: dict[str, tuple[str | int, ...] | None] = {}
        for given in self._tree.parameters:
            sizes = [size.name if isinstance(size, Name) else size.value for size in given.sizes or ()]  # type: ignore[attr-defined]
            found[given.name] = None if given.sizes is None else tuple(sizes)
        return found

    @property
    def gives_extremes(self) -> bool:
        """True if an output is maxima or minima, which the derivatives of these read."""
        extremes = {item.name for item in self._tree.statements if getattr(item, "aggregation", "+") in "<>"}
        return not extremes.isdisjoint(self.outputs)

    def __repr__(self) -> str:
        return f"function({self.text!r}{''.join(f', {name}={size}' for name, size in self.sizes.items())})"

    def _size(self, name: str, size: object) -> int:
        known = names_in(self._tree)
        if name not in known:
            raise OptionError(name, "the contraction has no such size", hint=near_matches(name, sorted(known)))
        try:
            return operator.index(size)  # type: ignore[arg-type]
        except TypeError:
            raise OptionError(name, "a size must be a whole number", size=repr(size)) from None

    def program(self, /, **shapes: Sequence[int]) -> Program:
        """The statements for inputs of these shapes.

        Raises:
            ContractionError: the shapes do not fit the text, or indexes and sizes make no sense with them.
            OptionError: a shape is given for what is no input.
        """
        return bind(self._tree, shapes, self.sizes)

    def gradient_program(self, wanted: Iterable[str] | None = None, /, **shapes: Sequence[int]) -> Program:
        """The statements that give the gradients of the inputs ``wanted`` (all); see :func:`differentiate`."""
        return differentiate(self.program(**shapes), wanted)

    def halos(self, /, **shapes: Sequence[int]) -> dict[str, analysis.Halo]:
        """Return the zeros around each tensor that is read, along every axis, that spare all tests of edges.

        Raises:
            ContractionError: an edge that terms reach beyond, and that zeros cannot replace exactly.
        """
        program = self.program(**shapes)
        found: dict[str, analysis.Halo] = {}
        for tree, statement in zip(self._tree.statements, program.statements, strict=True):
            met = analysis.met_by_halos(statement)
            unmet = [constraint for constraint in statement.constraints if constraint not in met]
            if unmet:
                raise ContractionError.at(
                    self.text,
                    tree.start,
                    tree.end,
                    f"under {statement.aggregation} no halo of zeros can replace the constraint {unmet[0]}",
                    hint="only the edge of a factor of a summed product, or of all that is summed, is so replaced.",
                )
            for read, sides in analysis.halos(statement).items():
                pairs = zip(found.get(read.tensor.name, sides), sides, strict=True)
                found[read.tensor.name] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs)
        return found

    def flops(self, /, **shapes: Sequence[int]) -> int:
        """Floating-point operations of all statements."""
        return sum(map(analysis.flops, self.program(**shapes).statements))

    def bytes(self, /, **shapes: Sequence[int]) -> int:
        """Bytes of memory that all statements, one by one, must move at least, at four a number."""
        return sum(map(analysis.bytes_moved, self.program(**shapes).statements))

    def __call__(
        self, /, device: Device | str | None = None, **arrays: npt.ArrayLike
    ) -> dict[str, npt.NDArray[np.float32]]:
        """The outputs for these inputs, by name, computed in float32 on a device; the same bits every time.

        What is compiled is kept for the next call with such shapes.

        Args:
            device: a device or its name; the best one if None.
            **arrays: the inputs.

        Raises:
            ContractionError: as :meth:`program`.
            DataError: an input is no array of numbers.
            DeviceError: there is no such device, or it has no room for the arrays.
        """
        values = _numbers(arrays)
        return running.run_program(self.program(**_shapes(values)), values, device)

    def gradients(
        self,
        arrays: Mapping[str, npt.ArrayLike],
        deltas: Mapping[str, npt.ArrayLike],
        device: Device | str | None = None,
    ) -> dict[str, npt.NDArray[np.float32]]:
        """dL/d input for every input, by name, computed in float32 on a device.

        Args:
            arrays: the inputs.
            deltas: dL/d output, for every output.
            device: as for a call.

        Raises:
            ContractionError, DataError: as :meth:`reference_gradients`.
            DeviceError: as for a call.
        """
        program, values, names = self._with_deltas(arrays, deltas)
        found = running.run_program(differentiate(program), values, device)
        return {name: found[names[name]] for name in self.inputs}

    def reference(self, /, **arrays: npt.ArrayLike) -> dict[str, Array]:
        """The outputs for these inputs, by name, in float64 on the host: slow, and what all else is tested against.

        Raises:
            ContractionError: as :meth:`program`.
            DataError: an input is no array of numbers.
        """
        values = _numbers(arrays)
        return run(self.program(**_shapes(values)), values)

    def reference_gradients(
        self, arrays: Mapping[str, npt.ArrayLike], deltas: Mapping[str, npt.ArrayLike]
    ) -> dict[str, Array]:
        """dL/d input for every input, by name, in float64 on the host.

        Args:
            arrays: the inputs.
            deltas: dL/d output, for every output.

        Raises:
            ContractionError: as :meth:`program`.
            DataError: an input or a delta is no array of numbers, a delta is missing, or not of its output's shape.
        """
        program, values, names = self._with_deltas(arrays, deltas)
        found = run(differentiate(program), values)
        return {name: found[names[name]] for name in self.inputs}

    def _with_deltas(
        self, arrays: Mapping[str, npt.ArrayLike], deltas: Mapping[str, npt.ArrayLike]
    ) -> tuple[Program, dict[str, npt.NDArray[np.generic]], dict[str, str]]:
        """The program, all that its derivative takes, and the names of deltas."""
        values, given = _numbers(arrays), _numbers(deltas)
        program = self.program(**_shapes(values))
        names = delta_names(program)
        for name in given:
            if name not in self.outputs:
                raise DataError(name, "the contraction has no such output", outputs=", ".join(self.outputs))
        for tensor in program.outputs:
            if tensor.name not in given:
                raise DataError(tensor.name, "the delta of this output is missing", given=", ".join(given) or "none")
            if given[tensor.name].shape != tensor.shape:
                received = given[tensor.name].shape
                raise DataError(tensor.name, f"its delta must have its shape {tensor.shape}", shape=received)
            values[names[tensor.name]] = given[tensor.name]
        return program, values, names


def _numbers(arrays: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.generic]]:
    found = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise DataError(name, "must be an array of real numbers", type=array.dtype)
        found[name] = array
    return found


def _shapes(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, Shape]:
    return {name: array.shape for name, array in arrays.items()}
