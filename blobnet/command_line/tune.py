"""``blobnet tune``: measures which kernels are the fastest for a network on a device, and remembers it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from tqdm import tqdm

from blobnet.bench import shapes
from blobnet.bench.tuner import Task, Tuner, tasks_of, tasks_of_cases
from blobnet.command_line.load import load_average, load_notes
from blobnet.command_line.model_argument import build_or_load
from blobnet.device import Device
from blobnet.errors import OptionError
from blobnet.tuning import LEVELS, Tunings

_ROW = "{:<44} {:>3} {:>8} {:>8}  {}"
_BAR = "{percentage:3.0f}%|{bar:16}| {elapsed}<{remaining} {desc}"


def run(options: argparse.Namespace) -> int:
    """Tunes, unless all is known, and prints a line a task."""
    cases = shapes.named(options.model)
    if cases and options.size is not None:
        raise OptionError("--size", "only networks are built for a size", given=options.model)
    graph = None if cases else build_or_load(options.model, options.size).graph
    device = Device(options.device)
    tunings, batch_size, training = device.tunings, options.batch_size, not options.inference
    if options.level != LEVELS[0]:
        tunings.check_writable()
    if graph is None:
        tasks = tasks_of_cases(cases, batch_size, training, device.tuning)
    else:
        tasks = tasks_of(graph, batch_size, training, device.tuning)
    print(f"{device.info}\n{options.model}, {'training' if training else 'inference'}, batch {batch_size}\n")
    tuner = Tuner(device, tasks, batch_size, options.level, again=options.again)
    for note in load_notes(load_average()) if tuner.tasks else []:
        print(f"{note}\n")
    print(_ROW.format("task", "n", "ms", "tuned", "by default -> tuned"))
    measured = {task.name for task in tuner.tasks}
    for task in tasks:
        if task.name not in measured:
            print(_row(task, tunings))
    try:
        _measure(tuner, tunings)
    except KeyboardInterrupt:
        known = sum(task.name in tunings.winners for task in tasks)
        told = f"{known} of {len(tasks)} tasks are known and kept; the same command goes on with the others"
        raise KeyboardInterrupt(f"interrupted; {told}") from None
    print("\n" + "\n".join(_summary(tasks, tunings)))
    return 0


def _measure(tuner: Tuner, tunings: Tunings) -> None:
    """Measures with a bar below the rows, where there is a terminal."""
    begun: set[tuple[str, str]] = set()
    settings = {"bar_format": _BAR, "dynamic_ncols": True, "leave": False}
    with tqdm(total=tuner.measurements, disable=None if tuner.tasks else True, **settings) as bar:

        def advance(task: str, candidate: str) -> None:
            bar.set_description_str(f"{task}: {candidate}", refresh=False)
            bar.update(len({(task, candidate)} - begun))
            begun.add((task, candidate))

        for task in tuner.run(advance):
            with bar.external_write_mode(file=sys.stdout):
                print(_row(task, tunings), flush=True)


def _row(task: Task, tunings: Tunings) -> str:
    winner = tunings.winners.get(task.name)
    if winner is None:
        shipped = tunings.shipped.get(task.name)
        return _ROW.format(task.name, task.count, "", "", f"{shipped}, as it ships" if shipped else "not tuned")
    names = dict.fromkeys((winner.default, winner.candidate))
    return _ROW.format(task.name, task.count, f"{winner.default_ms:.4g}", f"{winner.ms:.4g}", " -> ".join(names))


def _summary(tasks: Iterable[Task], tunings: Tunings) -> list[str]:
    """Before and after, for all tasks that are known, each as often as the network has it."""
    known = [(task.count, tunings.winners[task.name]) for task in tasks if task.name in tunings.winners]
    before, after = (sum(count * getattr(winner, name) for count, winner in known) for name in ("default_ms", "ms"))
    lines = [f"tuned: {len(known)} of {len(list(tasks))} tasks, kept in {tunings.path}"]
    if known:
        lines.append(f"all of them, n times each: {before:.4g} ms before, {after:.4g} ms after ({before / after:.2f}x)")
    return lines
