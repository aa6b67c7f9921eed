"""Values that are part of a model, the same for every sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from blobnet.launch.kernel_call import GlobalSize, KernelCall
from blobnet.launch.work_sizes import elementwise_work
from blobnet.layers.base import Layer, LayerContext, Node, ParameterSpec
from blobnet.layers.initializers import GIVEN
from blobnet.memory.blob import AXES, Shape
from blobnet.support.checks import is_int


@dataclass(frozen=True)
class Constant(Layer):
    """Values of (units[[[, depth], height], width]), the same for every sample: position embeddings, fixed patterns.

    ``layers.Constant(array)()`` is a node. The values are kept in the model, and in its file, as the parameter
    ``value``; drawing weights anew leaves them.

    Args:
        values: the array; float32 is kept of it. None where ``shape`` says what is to come (from a file).
        shape: its axes; not given beside ``values``.
        trainable: whether training changes the values.

    Raises:
        OptionError: the values are no finite numbers with 1 to 4 axes, or neither they nor a shape are given.
    """

    values: Any = field(default=None, compare=False, repr=False)
    shape: tuple[int, ...] | None = None
    trainable: bool = False
    arity: ClassVar[tuple[int, int | None]] = (0, 0)

    def __post_init__(self) -> None:
        given = None if self.values is None else np.array(self.values, np.float32)
        object.__setattr__(self, "values", None)
        super().__post_init__()
        object.__setattr__(self, "values", given)
        shape = self.shape if given is None else given.shape
        fits = isinstance(shape, tuple) and 1 <= len(shape) <= AXES + 1 and all(is_int(size, 1) for size in shape)
        self._require(fits, "the values must have 1 to 4 axes: units, depth, height, width", shape=shape)
        both = given is not None and self.shape is not None and self.shape != given.shape
        self._require(not both, "the shape must be that of the values", shape=self.shape, values=shape)
        self._require(given is None or bool(np.isfinite(given).all()), "every value must be finite in float32")
        object.__setattr__(self, "shape", shape)

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "values"}

    def __call__(self, *inputs: Node | Sequence[Node]) -> Node:
        node = super().__call__(*inputs)
        return node if self.values is None else replace(node, weights={"value": self.values})

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(*self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        assert self.shape is not None
        return self.shape

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return (ParameterSpec("value", self._sizes, GIVEN, trainable=self.trainable),)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        size, local = elementwise_work(site.output.shape, site.tuning)
        arrays = {"VALUE": site.parameter("value")}
        label = f"{site.name} forward"
        return [KernelCall("input/constant", label, size, {"OUTPUT": site.output}, arrays, local_size=local)]

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        if not site.trains("value"):
            return []
        size, local = elementwise_work(site.delta.shape, site.tuning)
        size = GlobalSize(size.width, size.height, size.units, per_sample=False)
        arrays = {"GRADIENT": site.gradient("value")}
        label = f"{site.name} backward parameters"
        blobs = {"OUTPUT_DELTA": site.delta}
        return [KernelCall("gradient/position_bias", label, size, blobs, arrays, local_size=local)]
