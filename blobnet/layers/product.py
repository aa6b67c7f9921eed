"""What layers with weights share: an operation and a task for each direction, and norms in the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from blobnet import implementations
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.elementwise import EpilogueOp, Norm
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, GlobalSize, KernelCall
from blobnet.launch.task import Task
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Kept, Layer, LayerContext, ParameterSpec
from blobnet.layers.initializers import check_initializer
from blobnet.memory.blob import Shape
from blobnet.memory.windows import WindowAxis

#: The bias modes of seed 000: nothing, one a unit, one a position.
BIAS_MODES: dict[bool | str, int] = {False: 0, True: 1, "position": 2}
#: Work-items of a GPU that fold a norm into the weights of a unit.
_FOLDING = 64


class _Product(Layer):
    """A layer whose directions are products with its weights, each of which can be computed in several ways."""

    #: See Operation.
    family: ClassVar[str]
    kept: ClassVar[Kept] = Kept(inputs=True, frozen=False)
    sized_by: ClassVar[str] = "filters"
    groups: int
    #: Hyperparameters of all of them.
    bias: bool | str
    activation: str | None
    initializer: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    @abstractmethod
    def _axes(self, shape: Shape) -> tuple[WindowAxis, WindowAxis]:
        """The window over an input."""

    @abstractmethod
    def _task(self, site: LayerContext, direction: str) -> Task:
        """The name of a direction, for tuning."""

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, self.activation)

    def _specs(self, weight: Sequence[int], bias: Sequence[int]) -> tuple[ParameterSpec, ...]:
        """The parameters, of these shapes."""
        specs = (
            ParameterSpec("weight", (*weight,), self.initializer, decayed=True),
            ParameterSpec("bias", (*bias,), "zeros"),
        )
        return specs if self.bias else specs[:1]

    def operation(self, site: LayerContext, direction: str) -> Operation:
        """What a direction reads and makes."""
        forward, deltas = direction == FORWARD, site.input_deltas
        target = deltas[0] if direction == BACKWARD_DATA else site.inputs[0]
        assert target is not None
        wants_bias = forward or (direction == BACKWARD_WEIGHTS and site.trains("bias"))
        return Operation(
            site.name,
            self.family,
            direction,
            target,
            site.output if forward else site.delta,
            self.groups,
            *self._axes(site.inputs[0].shape),
            site.array,
            site.tuning,
            site.batch_size,
            BIAS_MODES[self.bias] if wants_bias else 0,
            site.epilogue if forward else (),
            direction == BACKWARD_DATA and site.accumulate[0],
            not site.trains("weight"),
        )

    def alternatives(self, site: LayerContext) -> dict[Task, list[Implementation]]:
        directions = [FORWARD, *[BACKWARD_WEIGHTS] * site.trains("weight"), *[BACKWARD_DATA] * any(site.input_deltas)]
        return {self._task(site, item): implementations.candidates(self.operation(site, item)) for item in directions}

    def forward(self, site: LayerContext) -> list[KernelCall]:
        operation, rest = self.operation(site, FORWARD), without_norm(site.epilogue)
        if self.bias == "position" or rest == site.epilogue:
            return self._calls(site, operation)
        norm = site.epilogue[0]
        assert isinstance(norm, Norm)
        # One more launch makes weights and a bias of the layer and the norm behind it.
        units, width = operation.output.shape.units, _FOLDING if operation.tuning.model.is_simt else 1
        fold = operation.call(
            "normalization/fold",
            GlobalSize(width, 1, units, per_sample=False),
            width,
            f"{site.name} forward: fold",
            COLUMNS=operation.columns,
            EPSILON=norm.epsilon,
            FOLDED_WEIGHT=site.memory("folded weight", operation.weights),
            FOLDED_BIAS=site.memory("folded bias", units),
            **dict(norm.numbers),
        )

        def array(handle: ArrayHandle) -> Array:
            is_folded = handle.kind is ArrayKind.PARAMETER
            return fold.arrays[f"FOLDED_{handle.name.upper()}"] if is_folded else site.array(handle)

        return [fold, *self._calls(site, replace(operation, array=array, bias_mode=1, epilogue=rest))]

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        return self._calls(site, self.operation(site, BACKWARD_WEIGHTS)) if site.trains("weight") else []

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return self._calls(site, self.operation(site, BACKWARD_DATA)) if site.input_deltas[0] else []

    def _calls(self, site: LayerContext, operation: Operation) -> list[KernelCall]:
        task = self._task(site, operation.direction)
        return implementations.calls_of(implementations.chosen(operation, task), task)


def without_norm(steps: tuple[EpilogueOp, ...]) -> tuple[EpilogueOp, ...]:
    """The steps less a norm in front, which becomes part of the weights and of one bias a unit."""
    return steps[1:] if steps and isinstance(steps[0], Norm) else steps
