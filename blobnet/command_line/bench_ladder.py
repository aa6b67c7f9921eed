"""``blobnet bench ladder``: what each idea of the seeds' kernels brings on a device, and what production adds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, cast

from blobnet.bench import ladder, timing
from blobnet.bench.ladder import Ladder
from blobnet.bench.roofline import Roofline
from blobnet.bench.shapes import Case
from blobnet.bench.timing import CaseBench, Result
from blobnet.command_line.bench_text import kernel_text, result_record, short, tile_legend, work_text
from blobnet.errors import BuildError, DeviceError, OptionError
from blobnet.implementations.base import FORWARD
from blobnet.layers import Activation, Conv1D, Conv2D
from blobnet.tables import floor_percent

_BIASES: dict[str, bool | str] = {"none": False, "unit": True, "position": "position"}
_ROW = "  {:<20}{:>8}{:>8}{:>8}{:>4} {:<8}{:>8}{:>8}  {}"
_TITLES = ("", "ms", "GFLOPS", "GB/s", "%", "bound", "step", "climb", "what it adds")
_LEGEND = "%: of the floor, as for bench conv; step and climb: times as fast as the rung before, and as the first"


def prepare(options: argparse.Namespace, kind: str) -> list[tuple[Ladder, Case]]:
    """The ladders to climb on a ``kind`` of device, each with its case.

    Raises:
        OptionError, ShapeError: the command line names what there is not, or what no ladder takes.
    """
    if options.activation is not None and not Activation(options.activation).elementwise:
        rule = "it must be a function of single values, which a convolution can apply"
        raise OptionError("--activation", rule, activation=options.activation)
    bias = None if options.bias is None else _BIASES[options.bias]
    return ladder.climbs(kind, options.seed, options.subject, bias, options.activation)


def run(options: argparse.Namespace, top: Roofline, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures and prints the ladders of ``options.climbs``."""
    found = [_climb(climbed, case, options, top, say) for climbed, case in options.climbs]
    say(f"\n{_LEGEND}")
    return {"ladders": found}


def _climb(
    climbed: Ladder, case: Case, options: argparse.Namespace, top: Roofline, say: Callable[[str], None]
) -> dict[str, Any]:
    device, layer = options.opened, cast(Conv1D | Conv2D, case.layer)
    batch_size = options.batch_size or climbed.batch_size or options.samples
    extra = 4 * batch_size * case.output.elements if options.preactivation else 0
    epilogue = [f"bias a {layer.bias}"] if isinstance(layer.bias, str) else []
    epilogue += [layer.activation] if layer.activation else []
    epilogue += ["stored before the activation"] if options.preactivation else []
    say(f"\nseed {climbed.seed}, {climbed.title}; " + ", ".join([*epilogue, f"batch {batch_size}"]))
    say(work_text(case, case.work(FORWARD, batch_size)))
    say(_ROW.format(*_TITLES))
    results: list[Result] = []
    records: list[dict[str, Any]] = []
    for rung in climbed.rungs:
        record: dict[str, Any] = {"rung": rung.name, "adds": rung.adds}
        records.append(record)
        reason = rung.obstacle(layer, case.input)
        if reason is None:
            try:
                stand_in = rung.layer(layer, preactivation=options.preactivation)
                bench = CaseBench(device, case, batch_size, stand_in, extra)
                results.append(timing.measure(bench, FORWARD, top, options.repeats))
            except (BuildError, DeviceError) as error:  # The kernel takes more than this device or driver has.
                reason = str(error).splitlines()[0]
        record["skipped"] = reason
        if reason is None:
            record |= {**result_record(results[-1]), **_gains(results)}
            say(_line(rung.name, record, rung.adds))
        else:
            say(f"  {rung.name:<20}skipped: {reason}")
    production = timing.measure(CaseBench(device, case, batch_size, layer), FORWARD, top, options.repeats)
    last = {**result_record(production), **_gains([*results, production])}
    say(_line("production", last, kernel_text(production.main)))
    for line in tile_legend([production]):
        say(f"  {line}")
    return {
        "seed": climbed.seed,
        "shape": str(case),
        "bias": layer.bias,
        "activation": layer.activation,
        "preactivation": options.preactivation,
        "batch_size": batch_size,
        "rungs": records,
        "production": last,
    }


def _gains(results: list[Result]) -> dict[str, float | None]:
    """How many times as fast the last result is as the one before, and as the first."""
    *before, last = results
    return {
        "step": before[-1].seconds / last.seconds if before else None,
        "climb": before[0].seconds / last.seconds if before else None,
    }


def _line(name: str, record: dict[str, Any], remark: str) -> str:
    gains = ("" if record[key] is None else f"{short(record[key])}x" for key in ("step", "climb"))
    rates = (short(record[key]) for key in ("ms", "gflops", "gb_per_s"))
    return _ROW.format(name, *rates, floor_percent(record["floor_ms"], record["ms"]), record["bound"], *gains, remark)
