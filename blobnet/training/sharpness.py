"""Sharpness-aware minimisation: the way up to where a step's second gradients are taken, and back.

Foret et al., *Sharpness-aware minimization for efficiently improving generalization*, 2021; Kwon et al., *ASAM*, 2021.
"""

from __future__ import annotations

from blobnet.execution.executor import Executor
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.network.parameters import DeviceParameters, ParameterTable
from blobnet.optimizers import Optimizer
from blobnet.optimizers.base import MAX_PARTIALS, array_of, runs_call, squares_call
from blobnet.training.weight_buffers import SQUARES

#: The parameters, and the metrics behind them, as they are but for the second gradients of a step.
BEFORE = "parameters before"


class Sharpness:
    """The ascent of a step, for an optimizer that has one.

    Args:
        executor: of the step; it has the buffer BEFORE.
        parameters: that are trained.
        optimizer: whose ``sam`` and ``sam_adaptive`` say how far.
        metrics: the numbers in ``totals``.

    Attributes:
        passes: how often the gradients of a step are computed, with :meth:`climb` in between.
        is_up: whether the parameters are those of the ascent.
    """

    def __init__(self, executor: Executor, parameters: DeviceParameters, optimizer: Optimizer, metrics: int) -> None:
        self._executor, self._parameters = executor, parameters
        calls = sharpness_calls(parameters.table, optimizer, metrics, executor.plan.request.tuning.model)
        self._ascent, self._descent = (executor.bind(own, 0) for own in calls)
        self.passes = 2 if self._ascent else 1
        self.is_up = False

    def climb(self) -> None:
        """Moves the parameters up along the gradients."""
        self._executor.launch(self._ascent, 0)
        self._parameters.changed(only_trained=True)
        self.is_up = True

    def descend(self) -> None:
        """Moves them back, if they are up."""
        if self.is_up:
            self._executor.launch(self._descent, 0)
            self.is_up = False


def sharpness_calls(
    table: ParameterTable, optimizer: Optimizer, metrics: int, model: DeviceModel
) -> tuple[list[KernelCall], list[KernelCall]]:
    """Return the calls that go to where a step's second gradients are taken, and those back; none without a ``sam``.

    ``metrics`` are the numbers in ``totals``.
    """
    elements = table.trainable_elements
    if optimizer.sam is None or not elements:
        return [], []
    parameters, gradients = array_of("parameters", table.elements), array_of("gradients", elements)
    factors = array_of("parameters", elements) if optimizer.sam_adaptive else None
    squares = squares_call(gradients, array_of(SQUARES, MAX_PARTIALS), model, "sharpness norm", factors)
    arrays = {
        "PARAMETERS": parameters,
        "GRADIENTS": gradients,
        "SQUARES": array_of(SQUARES, MAX_PARTIALS),
        "TOTALS": array_of("totals", metrics),
        "KEPT": array_of(BEFORE, table.elements),
        "KEPT_TOTALS": array_of(BEFORE, metrics, table.elements),
    }
    macros: dict[str, Macro] = {"RHO": float(optimizer.sam), "ADAPTIVE": int(optimizer.sam_adaptive)}
    macros |= {"PARTIALS": squares.groups, "METRICS": metrics, "ELEMENTS": table.elements}
    climb, descend = (
        runs_call(
            "optimizer/sharpness",
            f"sharpness {label}",
            elements,
            model,
            arrays=arrays,
            macros={**macros, "CLIMBS": climbs},
        )
        for climbs, label in ((1, "ascent"), (0, "descent"))
    )
    return [squares, climb], [descend]
