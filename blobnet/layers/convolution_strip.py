"""Convolutions with few units a group (depthwise, images) on GPUs: a work-item makes a strip of rows for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.layers.base import Site
from blobnet.layers.blocking import splits_for
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem
from blobnet.layers.gradients import split_sum

#: Sums that a work-item keeps in registers, and rows of a strip, at most.
_SUMS, _ROWS = 24, 4
#: Work-items in a group that makes values, and in one that sums.
_LOCAL, _SUMMING = 128, 64
#: Units of the result in a group, and weights of one source unit, up to which these kernels, which unroll all taps, are
#: worth compiling.
_FEW_UNITS, _MOST_FACTORS = 4, 512
#: The widest rows: work-items of the last blocks read, and do not use, up to a row behind the halo.
_MOST_PITCH = 2048


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Strips of output rows."""
    yield from _candidates(site, problem, problem.output_units, _forward_calls)


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Strips of blocks of stride x stride input cells."""
    yield from _candidates(site, problem, problem.input_units, _backward_data_calls)


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """A work-group for each pair of units and split."""
    yield from _candidates(site, problem, problem.input_units * problem.output_units, _backward_weight_calls)


def _candidates(
    site: Site, problem: Problem, units: int, calls: Callable[[Site, Problem], list[KernelCall]]
) -> Iterator[Candidate]:
    """The candidate for a direction whose result has ``units`` units a group."""
    layouts = site.inputs[0].layout, site.output.layout
    # Strips of the whole batch are counted by an int.
    countable = all(site.batch_size * layout.memory_elements < 2**31 for layout in layouts)
    narrow = all(layout.unit_memory_width <= _MOST_PITCH for layout in layouts)
    if units <= _FEW_UNITS and problem.taps * units <= _MOST_FACTORS and countable and narrow:
        # Bound by memory: measured as the fastest wherever it fits.
        yield Candidate("strip", 0.0, partial(calls, site, problem))


def _forward_calls(site: Site, problem: Problem) -> list[KernelCall]:
    output = site.output.shape
    strip = _strip(output.height, problem.output_units)
    return [
        KernelCall(
            "convolution/forward_strip",
            f"{site.name} forward",
            _strips(output.width, output.height, strip, problem.groups),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={
                **problem.macros,
                **problem.epilogue_macros(site),
                "GROUPS": problem.groups,
                "STRIP": strip,
            },
            local_size=(_LOCAL, 1, 1),
        )
    ]


def _backward_data_calls(site: Site, problem: Problem) -> list[KernelCall]:
    target = site.input_deltas[0]
    assert target is not None
    stride_y, stride_x = problem.strides
    rows, columns = -(-target.shape.height // stride_y), -(-target.shape.width // stride_x)
    strip = _strip(rows, problem.input_units * stride_y * stride_x)
    return [
        KernelCall(
            "convolution/backward_data_strip",
            f"{site.name} backward data",
            _strips(columns, rows, strip, problem.groups),
            blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
            arrays={"WEIGHT": site.parameter("weight")},
            macros={
                **problem.macros,
                "GROUPS": problem.groups,
                "ACCUMULATE": int(site.accumulate[0]),
                "STRIP": strip,
            },
            local_size=(_LOCAL, 1, 1),
        )
    ]


def _backward_weight_calls(site: Site, problem: Problem) -> list[KernelCall]:
    height = site.delta.shape.height
    strip = min(height, _ROWS)
    pairs = problem.groups * problem.output_units * problem.input_units
    strips = site.batch_size * -(-height // strip) * site.delta.shape.width
    splits = splits_for(pairs, 2048, min(128, -(-strips // _SUMMING)))
    label = f"{site.name} backward weight"
    partials, reductions = split_sum(site, label, "weight", splits)
    call = KernelCall(
        "convolution/backward_weight_strip",
        label,
        GlobalSize(_SUMMING, splits, pairs, per_sample=False),
        blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
        arrays={"PARTIALS": partials},
        macros={**problem.macros, "SPLITS": splits, "STRIP": strip},
        local_size=(_SUMMING, 1, 1),
    )
    return [call, *reductions]


def _strip(rows: int, sums: int) -> int:
    """Rows of a strip whose every row needs ``sums`` sums."""
    return min(rows, max(1, _SUMS // sums), _ROWS)


def _strips(columns: int, rows: int, strip: int, groups: int) -> GlobalSize:
    return GlobalSize(_LOCAL, positions=columns * -(-rows // strip) * groups, tile=_LOCAL)
