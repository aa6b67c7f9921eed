"""What layers with weights share: an operation and a task for each direction, and norms in the weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from blobnet import implementations
from blobnet.cellwise import Norm, Step
from blobnet.geometry import WindowAxis
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation, choose
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import Array, GlobalSize, KernelCall
from blobnet.layers.base import Layer, Site
from blobnet.task import Task

#: Work-items of a GPU that fold a norm into the weights of a unit.
_FOLDING = 64


@dataclass(frozen=True)
class _Product(Layer):
    """A layer whose directions are products with its weights, each of which can be computed in several ways."""

    @abstractmethod
    def operation(self, site: Site, direction: str) -> Operation:
        """What a direction is."""

    @abstractmethod
    def _task(self, site: Site, direction: str) -> Task:
        """Its name, for tuning."""

    @property
    def backward_reads_inputs(self) -> bool:
        return True

    @property
    def frozen_reads_inputs(self) -> bool:
        return False

    def alternatives(self, site: Site) -> dict[Task, list[Implementation]]:
        directions = [FORWARD]
        directions += [BACKWARD_WEIGHTS] * site.trains("weight")
        directions += [BACKWARD_DATA] * any(site.input_deltas)
        operations = {self._task(site, direction): self.operation(site, direction) for direction in directions}
        return {task: implementations.candidates(operation) for task, operation in operations.items()}

    def forward(self, site: Site) -> list[KernelCall]:
        rest = without_norm(site.epilogue)
        if self.bias == "position" or rest == site.epilogue:  # type: ignore[attr-defined]  # Every product may have one.
            return self._calls(site, FORWARD)
        norm = site.epilogue[0]
        assert isinstance(norm, Norm)
        fold = _fold(site, norm, has_bias=bool(self.bias))  # type: ignore[attr-defined]
        folded = {name: fold.arrays[f"FOLDED_{name.upper()}"] for name in ("weight", "bias")}

        def array(kind: str, name: str, elements: int, per_sample: int) -> Array:
            return folded[name] if kind == "parameter" else site.array(kind, name, elements, per_sample)

        plain = replace(site, array=array, epilogue=rest)
        return [fold, *replace(self, bias=True)._calls(plain, FORWARD)]  # type: ignore[call-arg]

    def backward_parameters(self, site: Site) -> list[KernelCall]:
        return self._calls(site, BACKWARD_WEIGHTS) if site.trains("weight") else []

    def backward_data(self, site: Site) -> list[KernelCall]:
        return [] if site.input_deltas[0] is None else self._calls(site, BACKWARD_DATA)

    def _calls(self, site: Site, direction: str) -> list[KernelCall]:
        task, operation, known = self._task(site, direction), self.operation(site, direction), site.tuning.chosen
        key = task, operation.geometry
        if key not in known:
            known[key] = choose(site.tuning.choices, task, implementations.candidates(operation))
        chosen = known[key].of(operation)
        # A call that names its own way, as generated ones do, is left out by itself where a driver breaks it.
        return [call if call.way else replace(call, way=chosen.way, task=task) for call in chosen.calls()]


def without_norm(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps less a norm in front, which becomes part of the weights and of one bias a unit."""
    return steps[1:] if steps and isinstance(steps[0], Norm) else steps


def operation_of(
    site: Site, direction: str, family: str, groups: int, axes: tuple[WindowAxis, WindowAxis], bias_mode: int
) -> Operation:
    """The operation of a layer at its site: what a direction reads and makes."""
    forward, deltas = direction == FORWARD, site.input_deltas
    target = deltas[0] if direction == BACKWARD_DATA else site.inputs[0]
    assert target is not None
    wants_bias = forward or (direction == BACKWARD_WEIGHTS and site.trains("bias"))
    return Operation(
        site.name,
        family,
        direction,
        target,
        site.output if forward else site.delta,
        groups,
        *axes,
        site.array,
        site.tuning,
        site.batch_size,
        bias_mode if wants_bias else 0,
        site.epilogue if forward else (),
        direction == BACKWARD_DATA and site.accumulate[0],
    )


def _fold(site: Site, norm: Norm, *, has_bias: bool) -> KernelCall:
    """The launch that makes weights and a bias of a layer and the norm behind it."""
    weight, units = site.parameter("weight"), site.output.shape.units
    width = _FOLDING if site.tuning.model.items_are_lanes else 1
    return KernelCall(
        "normalization/fold",
        f"{site.name} forward: fold",
        GlobalSize(width, 1, units, per_sample=False),
        arrays={
            "WEIGHT": weight,
            # NOTE: a kernel takes no null array; without a bias the role is bound to the weights and not read.
            "BIAS": site.parameter("bias") if has_bias else weight,
            **dict(norm.numbers),
            "FOLDED_WEIGHT": site.memory("folded weight", weight.elements),
            "FOLDED_BIAS": site.memory("folded bias", units),
        },
        macros={"COLUMNS": weight.elements // units, "HAS_BIAS": int(has_bias), "EPSILON": norm.epsilon},
        local_size=(width, 1, 1),
    )
