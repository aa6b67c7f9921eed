"""The fully connected layer: the seeds' perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.implementations.base import BACKWARD_WEIGHTS
from blobnet.launch.elementwise import EpilogueOp, fits
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.task import Task
from blobnet.layers.base import LayerContext, ParameterSpec
from blobnet.layers.product import _Product, without_norm
from blobnet.memory.blob import Shape
from blobnet.memory.windows import WindowAxis


@dataclass(frozen=True)
class Dense(_Product):
    """Every output unit sees every value of a sample: (N, ...) -> (N, units).

    output[o] = bias[o] + sum over all values k of weight[o, k] * input[k], values in the order (unit, y, x)

    Args:
        units: output units.
        bias: whether to add one number a unit.
        activation: a function to apply to the output, see Activation.
        initializer: how ``weight`` starts, see blobnet.layers.initializers.

    Raises:
        OptionError: an argument is out of range.
    """

    units: int
    bias: bool = True
    activation: str | None = None
    initializer: str = "he_normal"
    family: ClassVar[str] = "dense"
    groups: ClassVar[int] = 1  # type: ignore[misc]
    flattens_input: ClassVar[bool] = True
    sized_by: ClassVar[str] = "units"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("units")
        self._require(isinstance(self.bias, bool), "bias must be True or False", bias=self.bias)

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(without_norm(steps), blobs=0)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.flat(self.units)

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return self._specs((self.units, inputs[0].elements), (self.units,))

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        # What makes the gradient of the weights makes the bias' too; where these are frozen it is made alone.
        return super().backward_parameters(site) or self.operation(site, BACKWARD_WEIGHTS).bias_gradient()

    def _axes(self, shape: Shape) -> tuple[WindowAxis, WindowAxis]:
        # A filter as large as the input.
        return WindowAxis(shape.height), WindowAxis(shape.width)

    def _task(self, site: LayerContext, direction: str) -> Task:
        # Its products are of fp32, whatever the precision.
        layer = f"{site.inputs[0].shape.elements}:dense{self.units}"
        return Task(direction, layer, site.batch_size, family="dense")
