"""``blobnet bench``: networks against what the device can do; in a checkout also single layers, and PyTorch."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from blobnet import plots
from blobnet.bench import network, roofline
from blobnet.bench.roofline import Roofline
from blobnet.command_line.beside_tests import beside_the_tests
from blobnet.command_line.load import load_average, load_notes
from blobnet.command_line.model_argument import ModelSource, build_for, find_model, known_models
from blobnet.device.device import Device
from blobnet.device.discovery import choose
from blobnet.errors import FileError, OptionError, near_matches
from blobnet.files.atomic import check_writable
from blobnet.memory.blob import Padding
from blobnet.model import Model
from blobnet.support.formatting import format_bytes
from blobnet.support.tables import ABOVE_FLOOR, floor_percent

#: Samples a launch or step, where the command line does not say: on the host, and on another device.
BATCH_SIZES = {True: 8, False: 64}
#: Kernels of a step that are listed by name.
_SHOWN_KERNELS = 12


#: Options that are for one subject of measurement alone, and those that each does not take.
_FOR_MODEL, _FOR_FIT, _FOR_LAYERS = ("launches", "classes"), ("augment",), ("direction",)
_NETWORKS, _FOR_NETWORKS = ("model", "fit"), ("recompute",)
_REFUSED = {
    "model": (*_FOR_LAYERS, *_FOR_FIT),
    "fit": (*_FOR_LAYERS, *_FOR_MODEL, "against", "plot"),
}


def prepare(options: argparse.Namespace) -> None:
    """Finds out what is to be measured, and whether it can be, before anything is.

    Sets ``options.opened`` (the device), ``options.twin`` (what runs PyTorch), ``options.where`` (PyTorch's name for
    the device) and ``options.samples`` (a step's); and ``options.model``, or ``options.layers`` (what times single
    layers) and ``options.cases``.

    Raises:
        DeviceError: there is no such device.
        OptionError, ShapeError, FileError, PlanError: the command line names what there is not, or what does not go
            together, or what does not fit the device.
    """
    for name in _REFUSED.get(options.what, (*_FOR_MODEL, *_FOR_FIT, *_FOR_NETWORKS)):
        if getattr(options, name):
            raise OptionError(f"--{name.replace('_', '-')}", f"this option is not for bench {options.what}")
    if options.plot is not None:
        plots.check(options.plot)
        check_writable(options.plot, 0)
    options.twin = beside_the_tests("torch_twin", "--against torch") if options.against else None
    if options.twin:
        options.twin.set_precision(options.precision)
    if options.what in _NETWORKS:
        if options.subject is None:
            raise OptionError("SUBJECT", f"bench {options.what} needs a network", hint=near_matches("", known_models()))
        options.source = find_model(options.subject)
        options.model = build_for(options.source, options.size, options.classes)
        if options.what == "fit":
            options.beside = beside_the_tests("fit", "bench fit")
            options.changes = options.beside.changes_of(options)
    else:
        options.beside = beside_the_tests("single_layers", f"bench {options.what}")
        options.cases = options.beside.find_cases(options)
    device = options.opened = Device(choose(options.device)).at(options.precision, options.storage)
    device.padding = Padding(align=options.align)
    options.samples = options.batch_size or BATCH_SIZES[device.is_host]
    if options.what in _NETWORKS:
        network.check(device, options.model, options.samples, recompute=options.recompute)
    options.where = None
    if options.twin:
        options.where = options.twin.device_for(device.info)
        if options.what == "model":
            options.twin.check_graph(options.model.graph)
        else:
            for case in options.cases:
                options.twin.check_layer(case.layer, case.input)


def run(options: argparse.Namespace) -> int:
    """Measures and prints what :func:`prepare` found."""
    device: Device = options.opened
    load = load_average()
    top = roofline.measure(device)
    with contextlib.suppress(FileError):  # What cannot be kept can be measured again.
        device.tunings.record_speeds(flops=top.flops, bandwidth=top.bandwidth)
    header: dict[str, Any] = {
        "device": device.info.name,
        "platform": device.info.platform,
        "driver": device.info.driver,
        "load_average": load,
        "batch_size": options.samples,
        "precision": device.precision,
        "roofline": {
            "gflops": top.flops / 1e9,
            "copy_gb_per_s": top.copy / 1e9,
            "read_gb_per_s": top.read / 1e9,
        },
        "torch": options.twin.description(options.where) if options.twin else None,
    }
    say: Callable[[str], None] = (lambda _: None) if options.json else (lambda text: print(text, flush=True))
    say(f"{device.info}")
    say(f"measured: {top.flops / 1e9:.1f} GFLOPS; copy {top.copy / 1e9:.1f}, read {top.read / 1e9:.1f} GB/s")
    twin = [str(header["torch"])] if options.twin else []
    say("; ".join([f"batch {options.samples}, {device.precision}", *twin]))
    for note in load_notes(load):
        say(note)
    found = (_run_model if options.what == "model" else options.beside.run)(options, top, say)
    if options.json:
        print(json.dumps({**header, **found}, indent=1))
    return 0


# -- networks ----------------------------------------------------------------------------------------------------------


def _run_model(options: argparse.Namespace, top: Roofline, say: Callable[[str], None]) -> dict[str, Any]:
    source: ModelSource = options.source
    model: Model = options.model
    device, batch_size, where = options.opened, options.samples, options.where
    shape, classes = model.graph.input.shape.dimensions, model.graph.output.shape.units
    bench = network.NetworkBench(device, model, batch_size, recompute=options.recompute)
    say(f"{source.text} for {'x'.join(map(str, shape))} and {classes} classes\n")
    steps = []
    for kind in (network.TRAINING, network.INFERENCE):
        rival = _torch_steps(options, bench, kind) if where is not None else None
        steps.append(bench.measure(kind, options.repeats, rival))
        say(_step_line(steps[-1], batch_size))
    profile = bench.profile(options.repeats)
    host = bench.host_seconds(options.repeats)
    say(f"host time a launch: {1e6 * host:.1f} us")
    points = bench.points(profile)
    shares = network.kernel_shares(profile, points, top, batch_size)
    if options.plot is not None:
        sizes = "x".join(map(str, shape))
        title = f"a training step of {source.text} for {sizes}, batch {batch_size}, {device.precision}"
        plots.save(plots.step(shares, rates_of(points), top, f"{title}, {device.info.name}"), options.plot)
    total = sum(item.seconds for item in profile)
    say(f"\na training step's launches: {1e3 * total:.3f} ms on the device")
    lines = _launch_lines(profile, total) if options.launches else _share_lines(shares, total)
    for line in [*lines, *([ABOVE_FLOOR] if any("floor >100 %" in line for line in lines) else [])]:
        say(line)
    return {
        "model": source.text,
        "input_shape": list(shape),
        "classes": classes,
        "steps": [_step_record(step, batch_size) for step in steps],
        "host_us_per_launch": 1e6 * host,
        "kernels": [
            {
                "kernel": share.kernel,
                "launches": share.launches,
                "ms": 1e3 * share.seconds,
                "floor_ms": 1e3 * share.floor,
                "bound": share.bound,
            }
            for share in shares
        ],
        "launches": [
            {"label": item.label, "kernel": item.kernel, "ms": 1e3 * item.seconds, "global_size": item.global_size}
            for item in profile
        ],
    }


def _torch_steps(options: argparse.Namespace, bench: network.NetworkBench, kind: str) -> Callable[[int], float]:
    """Return a function that has PyTorch do so many steps of a kind, and returns the seconds of one."""
    module = options.twin.Twin(options.model).module
    if kind == network.TRAINING:
        step = options.twin.training_step(module, options.where, bench.x, bench.y, network.LEARNING_RATE)
    else:
        step = options.twin.inference_step(module, options.where, bench.x)
    return partial(network.burst, step, partial(options.twin.finish, options.where))


def rates_of(items: Iterable[Any]) -> dict[str, list[tuple[float, float]]]:
    """(operations a byte, operations a second) by direction, for a roofline."""
    found: dict[str, list[tuple[float, float]]] = {}
    for item in items:
        rate = item.work.flops / item.work.bytes, item.work.flops / item.seconds
        found.setdefault(item.direction, []).append(rate)
    return found


def _step_line(step: network.StepTiming, batch_size: int) -> str:
    rate = f"{batch_size / step.seconds:,.0f} images/s"
    line = f"{step.kind:<10}{short(1e3 * step.seconds):>8} ms {rate:>18}, {step.launches} launches, "
    line += f"{format_bytes(step.bytes)} planned"
    if step.torch is not None:
        line += f"; PyTorch {batch_size / step.torch:,.0f} images/s, ratio {step.ratio:.2f}"
    return line


def _step_record(step: network.StepTiming, batch_size: int) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "ms": 1e3 * step.seconds,
        "images_per_s": batch_size / step.seconds,
        "launches": step.launches,
        "bytes": step.bytes,
        "torch_ms": None if step.torch is None else 1e3 * step.torch,
        "torch_images_per_s": None if step.torch is None else batch_size / step.torch,
        "ratio": step.ratio,
    }


def _launch_lines(profile: list[network.LaunchTiming], total: float) -> list[str]:
    """Every launch, the slowest first."""
    return [
        f"{1e3 * item.seconds:9.3f} ms {item.seconds / total:6.1%}  {item.label:<40.40} {item.kernel:<32} "
        f"{'x'.join(map(str, item.global_size))}"
        for item in sorted(profile, key=lambda item: -item.seconds)
    ]


def _share_lines(shares: list[network.KernelShare], total: float) -> list[str]:
    """Every kernel with all of its launches, the slowest first."""
    lines = [
        f"{1e3 * share.seconds:9.3f} ms {share.seconds / total:6.1%}  {share.kernel} "
        f"({share.launches} launches, floor {floor_percent(share.floor, share.seconds)} % by {share.bound})"
        for share in shares[:_SHOWN_KERNELS]
    ]
    rest = sum(share.seconds for share in shares[_SHOWN_KERNELS:])
    others = len(shares) - _SHOWN_KERNELS
    return [*lines, *([f"{1e3 * rest:9.3f} ms {rest / total:6.1%}  {others} other kernels"] if rest else [])]


def short(value: float) -> str:
    """A number in at most 7 characters, with three digits that count, or two of very large ones."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"
