"""``blobnet compile``: what a contraction becomes on a device: tables, schedules, predicted figures, OpenCL C."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from blobnet.command_line.beside_tests import beside_the_tests
from blobnet.contraction import analysis
from blobnet.contraction.costs import Prediction, predict
from blobnet.contraction.derivatives import differentiate
from blobnet.contraction.form import Program
from blobnet.contraction.function import function
from blobnet.contraction.lowering import Step
from blobnet.contraction.schedule import Schedule, prepared
from blobnet.contraction.search import best_schedule
from blobnet.contraction.table import Table
from blobnet.device.device import Device
from blobnet.errors import FileError, OptionError
from blobnet.execution.contractions import Compiled, compiled
from blobnet.memory.blob import FLOAT32

_REPEATS = 7


def run(options: argparse.Namespace) -> int:
    """Compiles a contraction for a device, prints what came of it, and how long it takes; or a model's choice."""
    if options.model is not None:
        beside_the_tests("tile_model", "--model").report(options)
        return 0
    program = program_of(options)
    device = Device(options.device)
    first: list[Table] = []

    def choose(table: Table) -> Schedule:
        first.append(table)
        is_given = options.schedule is not None and table == first[0]
        return Schedule.parse(options.schedule) if is_given else best_schedule(table, device.model)

    start = time.perf_counter()
    made = compiled(device, program, choose)
    seconds = time.perf_counter() - start
    print(f"{device.info}\n")
    steps = made.lowered.steps
    for number, step in enumerate(steps, start=1):
        is_last = number == len(steps) or steps[number].whole != step.whole
        prediction = predict(prepared(step.whole, step.chosen), step.chosen, device.model) if is_last else None
        _print_step(number, step, prediction, options.show)
    if options.show:
        print(made.calls[0].assemble())
    _print_times(made, program, seconds)
    return 0


def program_of(options: argparse.Namespace) -> Program:
    """The contraction of a text with shapes and sizes, or its derivatives."""
    program = function(_text(options.text), **dict(options.sizes)).program(**dict(options.shapes))
    return program if options.gradients is None else differentiate(program, options.gradients or None)


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


def _print_step(number: int, step: Step, prediction: Prediction | None, with_table: bool) -> None:
    """Prints a launch; the prediction is for all launches of a statement, and stands at the last one."""
    stored = ", ".join(store.operand.name for store in step.table.stores)
    print(f"launch {number}: {stored}")
    if with_table:
        print(step.table)
    print(f"  schedule   {str(step.schedule) or 'one result a work-item'}")
    if prediction:
        print(f"  predicted  {prediction}")
    print()


def _print_times(made: Compiled, program: Program, seconds: float) -> None:
    """Runs it on random numbers."""
    rng = np.random.default_rng(0)
    made.write({tensor.name: rng.standard_normal(tensor.shape) for tensor in program.inputs})
    made.launch()
    made.device.queue.finish()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        made.launch()
        made.device.queue.finish()
        times.append(time.perf_counter() - start)
    median = max(1e-9, statistics.median(times))
    flops = sum(map(analysis.flops, program.statements))
    memory = FLOAT32.itemsize * sum(made.lowered.elements.values())
    steps = len(made.lowered.steps)
    launches = f"{steps} launch{'es' if steps != 1 else ''}"
    print(f"compiled in {seconds * 1e3:.0f} ms; {launches}, {memory / 2**20:.1f} MiB of buffers")
    print(f"runs in {median * 1e3:.3f} ms, {flops / median / 1e9:.1f} GFLOPS (median of {_REPEATS})")
