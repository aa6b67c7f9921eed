"""``blobnet compile``: what a contraction becomes on a device: tables, schedules, predicted figures, OpenCL C."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from blobnet.blob import FLOAT32
from blobnet.contraction import analysis
from blobnet.contraction.costs import Prediction, predict
from blobnet.contraction.derivatives import differentiate
from blobnet.contraction.execution import Compiled, compiled
from blobnet.contraction.form import Program
from blobnet.contraction.function import function
from blobnet.contraction.lowering import Step
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.search import best_schedule
from blobnet.contraction.table import Table
from blobnet.device import Device
from blobnet.errors import FileError, OptionError

_REPEATS = 7


def run(options: argparse.Namespace) -> int:
    """Compiles a contraction for a device, prints what came of it, and how long it takes."""
    f = function(_text(options.text), **dict(options.sizes))
    shapes = dict(options.shapes)
    program = f.program(**shapes)
    if options.gradients is not None:
        program = differentiate(program, options.gradients or None)
    device = Device(options.device)
    chosen: list[tuple[Table, Schedule]] = []

    def choose(table: Table) -> Schedule:
        is_first = not chosen or chosen[0][0] == table
        is_given = options.schedule and is_first
        schedule = Schedule.parse(options.schedule) if is_given else best_schedule(table, device.model)
        chosen.append((table, schedule))
        return schedule

    start = time.perf_counter()
    made = compiled(device, program, choose)
    seconds = time.perf_counter() - start
    print(f"{device.info}\n")
    for number, step in enumerate(made.lowered.steps, start=1):
        _print_step(number, step, predict(step.table, step.schedule, device.model), options.show)
    if options.show:
        print(made.calls[0].assemble())
    _print_times(made, program, seconds)
    return 0


def _text(given: str) -> str:
    """A contraction, or what a file holds."""
    try:
        return Path(given).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(given, "the file must hold the text of a contraction", cause=error) from error
    except (OSError, ValueError):  # No file, or a text that no file can be called.
        if "=" in given:
            return given
    raise OptionError("TEXT", "it must be a contraction, such as 'O[n] = +(A[n, k])', or a file's path", text=given)


def _print_step(number: int, step: Step, prediction: Prediction, with_table: bool) -> None:
    stored = ", ".join(store.operand.name for store in step.table.stores)
    print(f"launch {number}: {stored}")
    if with_table:
        print(step.table)
    print(f"  schedule   {step.schedule or 'one result a work-item'}")
    print(f"  predicted  {prediction}\n")


def _print_times(made: Compiled, program: Program, seconds: float) -> None:
    """Runs it on random numbers."""
    rng = np.random.default_rng(0)
    made.write({tensor.name: rng.standard_normal(tensor.shape) for tensor in program.inputs})
    made.launch()
    made.device.finish()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        made.launch()
        made.device.finish()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    flops = sum(map(analysis.flops, program.statements))
    memory = FLOAT32.itemsize * sum(made.lowered.elements.values())
    steps = len(made.lowered.steps)
    launches = f"{steps} launch{'es' if steps != 1 else ''}"
    print(f"compiled in {seconds * 1e3:.0f} ms; {launches}, {memory / 2**20:.1f} MiB of buffers")
    print(f"runs in {median * 1e3:.3f} ms, {flops / median / 1e9:.1f} GFLOPS (median of {_REPEATS})")
