"""What training can keep beside the parameters, as data: the sum of a step's gradients, and averaged parameters."""

from __future__ import annotations

from blobnet import kernel_source
from blobnet.device_model import DeviceModel
from blobnet.kernel_call import Array, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.parameters import ParameterTable

#: The sum of the gradients of a step's batches, and what makes it the gradient of the step.
GRADIENT_SUM, SUM_SCALE = "gradient sum", "gradient sum scale"
#: An exponential moving average of the parameters, and how much of them the next step adds to it.
AVERAGE, AVERAGE_RATE = "averaged parameters", "average rate"
#: Work-items of a work-group, and the most of a launch, on a GPU.
_GROUP, _MOST_ITEMS = 256, 1 << 18


def memory(table: ParameterTable, *, accumulate: bool, average: bool) -> dict[str, int]:
    """Elements of each float32 buffer to allocate, by storage; the averaged parameters are DeviceParameters."""
    buffers = {GRADIENT_SUM: max(1, table.trainable_elements), SUM_SCALE: 1} if accumulate else {}
    return buffers | ({AVERAGE_RATE: 1} if average else {})


def accumulate_call(table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
    """The call that adds a batch's gradients to the sum; none without trainable parameters."""
    arrays = {"GRADIENTS": "gradients", "GRADIENT_SUM": GRADIENT_SUM}
    return _call("optimizer/accumulate", "gradient sum", arrays, {}, table, model)


def finish_sum_call(table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
    """The call that makes the sum, times SUM_SCALE, the gradients; none without trainable parameters."""
    arrays = {"SUM_SCALE": SUM_SCALE, "GRADIENT_SUM": GRADIENT_SUM, "GRADIENTS": "gradients"}
    return _call("optimizer/finish_sum", "gradient of the step", arrays, {}, table, model)


def average_call(table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
    """The call that moves the averaged parameters; none without trainable parameters."""
    arrays = {"PARAMETERS": "parameters", "AVERAGE_RATE": AVERAGE_RATE, "AVERAGE": AVERAGE}
    return _call("optimizer/average", "weight average", arrays, {"ELEMENTS": table.elements}, table, model)


def average_rate(step: int, decay: float) -> float:
    """What a step moves the average by; ``step`` steps were done before it.

    1 - min(decay, (1 + t) / (10 + t)) with t = step + 1, so that the average of few steps forgets the weights of the
    start (the rule of TensorFlow's ExponentialMovingAverage).
    """
    return 1.0 - min(decay, (2.0 + step) / (11.0 + step))


def _call(
    kernel: str, label: str, arrays: dict[str, str], macros: dict[str, Macro], table: ParameterTable, model: DeviceModel
) -> list[KernelCall]:
    if not table.trainable_elements:
        return []
    sizes = dict.fromkeys(("gradients", GRADIENT_SUM), table.trainable_elements) | {AVERAGE_RATE: 1, SUM_SCALE: 1}
    tunables = kernel_source.load(kernel).tuning(model)
    group = _GROUP if model.items_are_lanes else 1
    runs = -(-table.trainable_elements // (tunables["RUN"] * tunables["LANES"]))
    return [
        KernelCall(
            kernel,
            label,
            GlobalSize(min(-(-runs // group) * group, _MOST_ITEMS), per_sample=False),
            arrays={
                role: Array(name, sizes.get(name, table.elements), persistent=True) for role, name in arrays.items()
            },
            macros={"TRAINABLE_ELEMENTS": table.trainable_elements, **macros},
            tunables=tunables,
            local_size=(group, 1, 1),
        )
    ]
