"""Calls for gradients that several layers need: biases, and the second stage of split sums."""

from __future__ import annotations

from blobnet.kernel_call import Array, GlobalSize, KernelCall, elementwise_work
from blobnet.layers.base import Site


def bias_gradient(site: Site, bias_mode: int) -> list[KernelCall]:
    """The gradient of ``bias``: mode 0 has none, 1 has one a unit, 2 one a position."""
    arrays = {"GRADIENT": site.gradient("bias")} if bias_mode else {}
    label = f"{site.name} backward bias"
    if bias_mode == 1:
        tunables = site.tuning.of("gradient/unit_bias")
        local = tunables["GROUP_WIDTH"]
        size = GlobalSize(local, 1, site.delta.shape.units, per_sample=False)
        blobs = {"OUTPUT_DELTA": site.delta}
        return [KernelCall("gradient/unit_bias", label, size, blobs, arrays, {}, tunables, (local, 1, 1))]
    if bias_mode == 2:
        size, local_size = elementwise_work(site.delta.shape, site.tuning)
        size = GlobalSize(size.width, size.height, size.units, per_sample=False)
        blobs = {"OUTPUT_DELTA": site.delta}
        return [KernelCall("gradient/position_bias", label, size, blobs, arrays, local_size=local_size)]
    return []


def split_sum(site: Site, label: str, name: str, splits: int) -> tuple[Array, list[KernelCall]]:
    """Where ``splits`` partial sums of the gradient of a parameter go, and the calls that add them.

    A sum in one part is the gradient itself.
    """
    gradient = site.gradient(name)
    if splits == 1:
        return gradient, []
    partials = site.memory(f"{name} partials", splits * gradient.elements)
    on_cpu = site.tuning.device_class == "cpu"
    run, local = (256, 1) if on_cpu else (1, 64)
    width = min(-(-gradient.elements // (run * local)) * local, 16384)
    call = KernelCall(
        "gradient/reduce",
        label,
        GlobalSize(width, per_sample=False),
        arrays={"PARTIALS": partials, "GRADIENT": gradient},
        macros={"SPLITS": splits, "ELEMENTS": gradient.elements, "RUN": run},
        local_size=(local, 1, 1),
    )
    return partials, [call]
