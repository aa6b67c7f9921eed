"""Dense layers by tiles of sums in registers, straight from the blobs; a sample is one row of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from blobnet.blob import BlobLayout
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.activation import activation_macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import choose_tile, lanes_for
from blobnet.layers.candidates import Candidate

#: Speeds on a GPU, relative to the best product there: fitted to times on an NVIDIA H200 at batch 64. On a CPU there is
#: no other way.
_FORWARD_SPEED, _DATA_SPEED, _WEIGHT_SPEED = 0.15, 0.12, 0.35
#: Work-groups for each compute unit that the forward pass should have on a GPU.
_GROUPS = 4


def forward(site: Site, bias: bool) -> Iterator[Candidate]:
    """Dot products over the elements."""
    yield _candidate(site, _FORWARD_SPEED, partial(_forward_calls, site, bias))


def backward_weight(site: Site, bias: bool) -> Iterator[Candidate]:
    """Outer products over the samples; the gradient of the bias comes with them."""
    yield _candidate(site, _WEIGHT_SPEED, partial(_backward_weight_calls, site, bias))


def backward_data(site: Site) -> Iterator[Candidate]:
    """Sums over the output units."""
    yield _candidate(site, _DATA_SPEED, partial(_backward_data_calls, site))


def _candidate(site: Site, speed: float, calls: Callable[[], list[KernelCall]]) -> Candidate:
    work = site.batch_size * site.output.shape.units * site.inputs[0].shape.elements
    return Candidate("direct", work / site.tuning.model.cores / speed, calls)


def _forward_calls(site: Site, bias: bool) -> list[KernelCall]:
    kernel = "dense/forward"
    tunables = site.tuning.of(kernel)
    macros, _ = _rows(site.inputs[0].layout, tunables)
    most_samples = min(site.batch_size, tunables["MAXIMUM_SAMPLES"])
    most_units = tunables["MAXIMUM_UNITS"]
    if site.tuning.model.items_are_lanes:  # For few samples the weights' bytes bind, which many groups read sooner.
        sums = site.output.shape.units * -(-site.batch_size // most_samples)
        most_units = max(1, min(most_units, sums // (_GROUPS * site.tuning.model.cores)))
    limits = most_units, most_samples, tunables["MAXIMUM_ACCUMULATORS"]
    units, samples = choose_tile(site.output.shape.units, most_samples, *limits)
    local = tunables["GROUP_WIDTH"]
    return [
        KernelCall(
            kernel,
            f"{site.name} forward",
            GlobalSize(local, -(-site.output.shape.units // units), samples=samples),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
            # NOTE: a kernel takes no null array; without a bias the role is bound to the weights and not read.
            arrays={
                "WEIGHT": site.parameter("weight"),
                "BIAS": site.parameter("bias" if bias else "weight"),
            },
            macros={
                **macros,
                "HAS_BIAS": int(bias),
                **activation_macro(site.activation),
                "BLOCK_SAMPLES": samples,
                "BLOCK_UNITS": units,
            },
            tunables=tunables,
            local_size=(local, 1, 1),
        )
    ]


def _backward_weight_calls(site: Site, bias: bool) -> list[KernelCall]:
    kernel = "dense/backward_weight"
    tunables = site.tuning.of(kernel)
    macros, vectors = _rows(site.inputs[0].layout, tunables)
    local = tunables["GROUP_WIDTH"]
    groups = -(-vectors // local)
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    units, block_vectors = choose_tile(site.output.shape.units, groups, *limits)
    return [
        KernelCall(
            kernel,
            f"{site.name} backward weight",
            GlobalSize(-(-groups // block_vectors) * local, -(-site.output.shape.units // units), per_sample=False),
            blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
            arrays={
                "WEIGHT_GRADIENT": site.gradient("weight"),
                "BIAS_GRADIENT": site.gradient("bias" if bias else "weight"),
            },
            macros={
                **macros,
                "HAS_BIAS": int(bias),
                "BLOCK_UNITS": units,
                "BLOCK_VECTORS": block_vectors,
            },
            tunables=tunables,
            local_size=(local, 1, 1),
        )
    ]


def _backward_data_calls(site: Site) -> list[KernelCall]:
    target = site.input_deltas[0]
    assert target is not None
    kernel = "dense/backward_data"
    tunables = site.tuning.of(kernel)
    macros, vectors = _rows(target.layout, tunables)
    local = tunables["GROUP_WIDTH"]
    groups = -(-vectors // local)
    most = tunables["MAXIMUM_SAMPLES"]
    limits = tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    samples, block_vectors = choose_tile(most, groups, most, *limits)
    return [
        KernelCall(
            kernel,
            f"{site.name} backward data",
            GlobalSize(-(-groups // block_vectors) * local, samples=samples),
            blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
            arrays={"WEIGHT": site.parameter("weight")},
            macros={
                **macros,
                "ACCUMULATE": int(site.accumulate[0]),
                "BLOCK_SAMPLES": samples,
                "BLOCK_VECTORS": block_vectors,
            },
            tunables=tunables,
            local_size=(local, 1, 1),
        )
    ]


def _rows(layout: BlobLayout, tunables: dict[str, int]) -> tuple[dict[str, Macro], int]:
    """Macros that describe a sample as runs of consecutive values, and the number of vectors in it."""
    if layout.is_contiguous:
        rows, run = 1, layout.unit_count * layout.unit_elements
    else:
        rows, run = layout.plane_count * layout.unit_height, layout.unit_width
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    macros: dict[str, Macro] = {
        "ROWS": rows,
        "ROW_ELEMENTS": run,
        "LANES": lanes,
    }
    return macros, rows * -(-run // lanes)
