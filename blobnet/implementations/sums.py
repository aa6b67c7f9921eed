"""Launches that several implementations need: gradients of biases, and the second stage of split sums of gradients."""

from __future__ import annotations

from dataclasses import replace

from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import Array, GlobalSize, KernelCall, Tuning, elementwise_work


def bias_gradient(operation: Operation) -> list[KernelCall]:
    """The gradient of the bias, if backward weights wants one (``bias_mode``)."""
    label, delta = f"{operation.name} backward bias", operation.output.shape
    if not operation.bias_mode:
        return []
    if operation.bias_mode == 2:
        size, local = elementwise_work(delta, operation.tuning)
        gradient = operation.parameter("BIAS_GRADIENT")
        size = replace(size, per_sample=False)
        return [operation.call("gradient/position_bias", size, local, {}, label, GRADIENT=gradient)]
    kernel = "gradient/unit_bias"
    tunables = operation.tuning.of(kernel)
    splits, items = splits_for(delta.units, tunables["TARGET_GROUPS"], operation.batch_size), tunables["GROUP_WIDTH"]
    partials, reductions = split_sum(operation, splits, "bias", label)
    size = GlobalSize(items, splits, delta.units, per_sample=False)
    return [operation.call(kernel, size, items, {}, label, SPLITS=splits, PARTIALS=partials), *reductions]


def split_sum(
    operation: Operation, splits: int, name: str = "weight", label: str = ""
) -> tuple[Array, list[KernelCall]]:
    """Where ``splits`` partial sums of the gradient of a parameter go, and the launches that add them.

    A sum in one part is the gradient itself.
    """
    gradient = operation.parameter(f"{name.upper()}_GRADIENT")
    if splits == 1:
        return gradient, []
    partials = operation.memory(f"{name} partials", splits * gradient.elements)
    call = sum_call(label or operation.label, partials, gradient, splits, operation.tuning)
    return partials, [call]


def sum_call(label: str, partials: Array, gradient: Array, splits: int, tuning: Tuning) -> KernelCall:
    """The launch that adds up partial sums of a gradient, which lie one behind the other."""
    run, local = (1, 64) if tuning.model.items_are_lanes else (256, 1)
    return KernelCall(
        "gradient/reduce",
        label,
        GlobalSize(-(-gradient.elements // (run * local)) * local, per_sample=False),
        arrays={"PARTIALS": partials, "GRADIENT": gradient},
        macros={"SPLITS": splits, "ELEMENTS": gradient.elements, "RUN": run},
        local_size=(local, 1, 1),
    )
