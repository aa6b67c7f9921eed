"""``blobnet tune``: measures which kernels are the fastest for a network on a device, and remembers it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from tqdm import tqdm

from blobnet.bench.tuner import Job, Tuner, jobs_of, jobs_of_cases
from blobnet.command_line.load import load_average, load_notes
from blobnet.command_line.model_argument import build_or_load
from blobnet.device.device import Device
from blobnet.device.tuning import LEVELS, Tunings
from blobnet.errors import OptionError
from blobnet.examination import layer_cases
from blobnet.launch.task import Task, Variant
from blobnet.memory.blob import FLOAT32
from blobnet.support.tables import row_text

_COLUMNS = ("{:<44}", "{:>3}", "{:>8}", "{:>8}", " {:<32}")
_BAR = "{percentage:3.0f}%|{bar:16}| {elapsed}<{remaining} {desc}"


def run(options: argparse.Namespace) -> int:
    """Tunes, unless all is known, and prints a line a task."""
    cases = layer_cases.named(options.model)
    if cases and options.size is not None:
        raise OptionError("--size", "only networks are built for a size", given=options.model)
    graph = None if cases else build_or_load(options.model, options.size).graph
    device = Device(options.device).at(options.precision)
    if device.storage != FLOAT32:
        rule = "ways are measured with float32 between layers, at fp32 or tf32"
        raise OptionError("--precision", rule, precision=options.precision)
    tunings, batch_size, training = device.tunings, options.batch_size, not options.inference
    if options.level != LEVELS[0]:
        tunings.check_writable()
    if graph is None:
        jobs = jobs_of_cases(cases, batch_size, training, device.tuning)
    else:
        jobs = jobs_of(graph, batch_size, training, device.tuning)
    tasks = [job.task for job in jobs]
    if options.output:
        tunings.ship(options.output, tasks, device.info.answers)  # What cannot be written is said now.
    work = "training" if training else "inference"
    print(f"{device.info}\n{options.model}, {work}, batch {batch_size}, {device.precision}\n")
    tuner = Tuner(device, jobs, batch_size, options.level, again=options.again)
    for note in load_notes(load_average()) if tuner.jobs else []:
        print(f"{note}\n")
    print(_line("task", "n", "ms", "tuned", "by default -> tuned"))
    for job in jobs:
        if job not in tuner.jobs:
            print(_row(job, tunings))
    try:
        _measure(tuner, tunings)
    except KeyboardInterrupt:
        known = sum(task in tunings.winners for task in tasks)
        told = f"{known} of {len(tasks)} tasks are known and kept; the same command goes on with the others"
        raise KeyboardInterrupt(f"interrupted; {told}") from None
    finally:
        if options.output:
            shipped = tunings.ship(options.output, tasks, device.info.answers)
    print("\n" + "\n".join(_summary(jobs, tunings)))
    if options.output:
        print(f"to ship: {shipped}")
    return 0


def _measure(tuner: Tuner, tunings: Tunings) -> None:
    """Measures with a bar below the rows, where there is a terminal."""
    begun: set[tuple[Task, Variant]] = set()
    settings = {"bar_format": _BAR, "dynamic_ncols": True, "leave": False}
    with tqdm(total=tuner.measurements, disable=None if tuner.jobs else True, **settings) as bar:

        def advance(task: Task, way: Variant) -> None:
            bar.set_description_str(f"{task}: {way}", refresh=False)
            bar.update(len({(task, way)} - begun))
            begun.add((task, way))

        for job in tuner.run(advance):
            with bar.external_write_mode(file=sys.stdout):
                print(_row(job, tunings), flush=True)


def _line(*cells: object) -> str:
    return row_text(_COLUMNS, cells, gap=" ")


def _row(job: Job, tunings: Tunings) -> str:
    name, winner = str(job.task), tunings.winners.get(job.task)
    if winner is None:
        return _line(name, job.count, "", "", _unmeasured(job.task, tunings))
    names = dict.fromkeys((winner.default, winner.candidate))
    return _line(name, job.count, f"{winner.default_ms:.4g}", f"{winner.ms:.4g}", " -> ".join(map(str, names)))


def _unmeasured(task: Task, tunings: Tunings) -> str:
    """Return the choice for a task without a winner, if the cost model does not make it."""
    for known, candidate in tunings.choices.near(task):
        return f"{candidate}, as " + ("it ships" if known == task else f"for batch {known.batch_size}")
    return "not tuned"


def _summary(jobs: Iterable[Job], tunings: Tunings) -> list[str]:
    """Before and after, for all tasks that are known, each as often as the network has it."""
    known = [(job.count, tunings.winners[job.task]) for job in jobs if job.task in tunings.winners]
    before, after = (sum(count * getattr(winner, name) for count, winner in known) for name in ("default_ms", "ms"))
    lines = [f"tuned: {len(known)} of {len(list(jobs))} tasks, kept in {tunings.path}"]
    if known:
        ratio = before / max(1e-9, after)  # A clock may stand still.
        lines.append(f"all of them, n times each: {before:.4g} ms before, {after:.4g} ms after ({ratio:.2f}x)")
    return lines
