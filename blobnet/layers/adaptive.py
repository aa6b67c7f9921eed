"""Pooling over whole planes, and into planes of a size that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.lowered import AXES, ContractionLayer, function
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class GlobalMaxPool(ContractionLayer):
    """The maximum of each unit over all its positions: (N, units, ...) -> (N, units).

    The delta goes to the first of equal maxima.
    """

    keeps_output: ClassVar[bool] = True

    def function(self, inputs: Sequence[Shape]) -> Function:
        self._require_shape(inputs[0].rank > 0, "the input must have spatial axes", input=inputs[0])
        return function("function (I[N, C, ...]) -> (O) { O[n, c] = >(I[n, c, ...]); }", inputs[0])


@dataclass(frozen=True)
class _Adaptive(ContractionLayer):
    """The base of pooling into planes of a given size.

    Output cell p of P takes the cells from ``p * size // P`` to before ``ceil((p + 1) * size / P)``, as PyTorch does:
    those y for which 0 <= (y + 1) * P - p * size - 1 < size + P - 1.
    """

    output_size: int | tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._per_axis("output_size", len(self.output_size) if isinstance(self.output_size, tuple) else 1)

    def _windows(self, shape: Shape) -> list[tuple[str, int, str]]:
        """Return for each axis its index, the output's size, and the constraint of the window."""
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        axes, sizes = AXES[-shape.rank :], self._per_axis("output_size", shape.rank)
        windows = []
        for axis, size, whole in zip(axes, sizes, shape.dimensions[1:], strict=True):
            bound = f"({axis} + 1)*{size} - p{axis}*{whole} - 1 < {whole + size - 1}"
            windows.append((axis, size, bound))
        return windows


@dataclass(frozen=True)
class AdaptiveMaxPool(_Adaptive):
    """The maxima of windows that divide each axis into ``output_size`` parts: (N, units, ...) -> (N, units, *sizes).

    Windows are as alike as can be, and may share cells. The delta goes to the first of equal maxima.

    Args:
        output_size: an int for all spatial axes, or one for each.

    Raises:
        OptionError: a size below 1, or not as many sizes as the input has spatial axes.
        ShapeError: the input has no spatial axes.
    """

    keeps_output: ClassVar[bool] = True

    def function(self, inputs: Sequence[Shape]) -> Function:
        windows = self._windows(inputs[0])
        cells = ", ".join(f"p{axis}" for axis, _, _ in windows)
        sizes = ", ".join(str(size) for _, size, _ in windows)
        bounds = ", ".join(bound for _, _, bound in windows)
        text = f"""function (I[N, C, ...]) -> (O) {{
          O[n, c, {cells} : N, C, {sizes}] = >(I[n, c, ...]), {bounds};
        }}"""
        return function(text, inputs[0])


@dataclass(frozen=True)
class AdaptiveAveragePool(_Adaptive):
    """The means of windows that divide each axis into ``output_size`` parts: (N, units, ...) -> (N, units, *sizes).

    Windows are as alike as can be, and may share cells.

    Args:
        output_size: an int for all spatial axes, or one for each.

    Raises:
        OptionError: a size below 1, or not as many sizes as the input has spatial axes.
        ShapeError: the input has no spatial axes.
    """

    keeps_inputs: ClassVar[bool] = False

    def function(self, inputs: Sequence[Shape]) -> Function:
        """A mean along one axis after the other."""
        windows, rank = self._windows(inputs[0]), inputs[0].rank
        names = ["I", *(f"M{axis}" for axis, _, _ in windows[:-1]), "O"]
        axes = [axis for axis, _, _ in windows]
        sizes = [axis.upper() for axis in axes]
        statements = []
        for place, (axis, size, bound) in enumerate(windows):
            cells = [*axes]
            cells[place], sizes[place] = f"p{axis}", str(size)
            statements.append(f"L{axis}[p{axis} : {size}] = +(1), {bound}, {axis} < {axis.upper()};")
            statements.append(
                f"{names[place + 1]}[n, c, {', '.join(cells)} : N, C, {', '.join(sizes)}]"
                f" = +({names[place]}[n, c, {', '.join(axes)}] / L{axis}[p{axis}]), {bound};"
            )
        assert len(axes) == rank
        return function(f"function (I[N, C, ...]) -> (O) {{ {' '.join(statements)} }}", inputs[0])
