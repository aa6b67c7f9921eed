"""Vectors that are learned for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Position, Tensor, apply
from blobnet.launch.kernel_call import KernelCall
from blobnet.layers.base import LayerContext
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import ContractionLayer
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class Embedding(ContractionLayer):
    """For each whole number the vector that is learned for it.

    output[e, t] = weight[input[t], e]. (width,) or (1, width) -> (units, width): the numbers of words, letters or
    classes, 0 to ``count - 1``; any other number gives zeros, and learns nothing. Parameter: ``weight`` (count, units).
    It is a product with ones and zeros, whose time grows with ``count``.

    Args:
        count: how many numbers there are.
        units: of the output.
        initializer: how ``weight`` starts, see blobnet.layers.initializers.

    Raises:
        OptionError: an argument is out of range; or values between layers have too few bits for the numbers.
        ShapeError: the input has several units and positions.
    """

    count: int
    units: int
    initializer: str = "fan_in_uniform"
    sized_by: ClassVar[str] = "units"
    takes_numbers: ClassVar[tuple[int, ...]] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("count", "units")
        check_initializer(self.subject, self.initializer)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape = Shape(*given.shape[1:])
        is_row = not shape.rank or (shape.rank == 1 and shape.units == 1)
        self._require_shape(is_row, "the input must be a row of numbers: (width,) or (1, width)", input=shape)
        weight = built.parameter("weight", self.count, self.units)
        n, e, t, v, one = indexes("n e t v one")
        number = given(n, one, t) if shape.rank else given(n, t)
        width = shape.width if shape.rank else shape.units
        term = weight(v, e) * apply("equal", number, Position(v))
        built.sum("O", (n, e, t), term, shape=(given.shape[0], self.units, width))

    def forward(self, site: LayerContext) -> list[KernelCall]:
        self._require_exact(self.count, site.inputs[0].type)
        return super().forward(site)
