"""Calls for gradients that several layers need: biases, and the second stage of split sums."""

from __future__ import annotations

from blobnet.kernel_call import Array, GlobalSize, KernelCall, Tuning, elementwise_work
from blobnet.layers.base import Site
from blobnet.layers.blocking import splits_for


def bias_gradient(site: Site, bias_mode: int) -> list[KernelCall]:
    """The gradient of ``bias``: mode 0 has none, 1 has one a unit, 2 one a position; a frozen one is not wanted."""
    if not bias_mode or not site.trains("bias"):
        return []
    label = f"{site.name} backward bias"
    blobs = {"OUTPUT_DELTA": site.delta}
    if bias_mode == 2:
        size, local_size = elementwise_work(site.delta.shape, site.tuning)
        size = GlobalSize(size.width, size.height, size.units, per_sample=False)
        arrays = {"GRADIENT": site.gradient("bias")}
        return [KernelCall("gradient/position_bias", label, size, blobs, arrays, local_size=local_size)]
    tunables = site.tuning.of("gradient/unit_bias")
    local, units = tunables["GROUP_WIDTH"], site.delta.shape.units
    splits = splits_for(units, tunables["TARGET_GROUPS"], site.batch_size)
    partials, reductions = split_sum(site, label, "bias", splits)
    call = KernelCall(
        "gradient/unit_bias",
        label,
        GlobalSize(local, splits, units, per_sample=False),
        blobs,
        {"PARTIALS": partials},
        {"SPLITS": splits},
        tunables,
        (local, 1, 1),
    )
    return [call, *reductions]


def split_sum(site: Site, label: str, name: str, splits: int) -> tuple[Array, list[KernelCall]]:
    """Where ``splits`` partial sums of the gradient of a parameter go, and the calls that add them.

    A sum in one part is the gradient itself.
    """
    gradient = site.gradient(name)
    if splits == 1:
        return gradient, []
    partials = site.memory(f"{name} partials", splits * gradient.elements)
    return partials, [sum_call(label, partials, gradient, splits, site.tuning)]


def sum_call(label: str, partials: Array, gradient: Array, splits: int, tuning: Tuning) -> KernelCall:
    """The call that adds up partial sums, which lie one behind the other."""
    run, local = (1, 64) if tuning.model.items_are_lanes else (256, 1)
    width = -(-gradient.elements // (run * local)) * local
    return KernelCall(
        "gradient/reduce",
        label,
        GlobalSize(width, per_sample=False),
        arrays={"PARTIALS": partials, "GRADIENT": gradient},
        macros={"SPLITS": splits, "ELEMENTS": gradient.elements, "RUN": run},
        local_size=(local, 1, 1),
    )
