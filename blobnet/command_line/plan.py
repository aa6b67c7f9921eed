"""``blobnet plan``: the memory that a model needs, on a device or without any."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from blobnet import onnx, plots
from blobnet.command_line.model_argument import build_for, find_model, is_model_file, open_model
from blobnet.command_line.transfer import frozen_patterns
from blobnet.device import discovery
from blobnet.device.discovery import DeviceInfo, tuning_of
from blobnet.device.tuning import Tunings
from blobnet.errors import OptionError, counted
from blobnet.files.atomic import check_writable
from blobnet.hardware.device_model import HOST, DeviceModel
from blobnet.launch.kernel_call import KernelCall, settle
from blobnet.launch.task import TunedChoices
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FLOAT32, Padding
from blobnet.model import Model
from blobnet.network.ends import to_dict
from blobnet.network.parameters import parameter_table
from blobnet.network.patterns import frozen_parameters
from blobnet.onnx.operation import UnsupportedError
from blobnet.optimizers import Optimizer
from blobnet.parallel.world import SHARDS, World, check_world
from blobnet.planning import make_plan
from blobnet.planning.report import Limits, report
from blobnet.support.formatting import format_bytes
from blobnet.training import scaling
from blobnet.training.arguments import losses_for
from blobnet.training.settings import TrainingSettings
from blobnet.training.shard_sum import sums_of
from blobnet.training.step_plan import counts_at_once, memory_of, of_shards
from blobnet.training.weight_buffers import Sums


def run(options: argparse.Namespace) -> int:
    """Prints the plan, and the largest batch for the memory of a device or of --memory."""
    if options.plot is not None:
        plots.check(options.plot)
        check_writable(options.plot, 0)
    model, name, tail = _model(options)
    info = _device(options)
    limits = _limits(options, info)
    training = not options.inference and not tail
    if options.recompute and not training:
        raise OptionError("--recompute", "there is a backward pass in training alone")
    precision, storage = settle(options.precision, options.storage)
    names = list(model.graph.outputs)
    # Of a model that was not trained: what its outputs can be. A single one is no class, unless classes are asked for.
    outputs = model.graph.outputs.values()
    assumed = [CrossEntropy() if out.shape.units > 1 or options.classes else MeanSquaredError() for out in outputs]
    known = model.loss or to_dict(names, assumed)
    loss = losses_for(model.graph, None, known) if training else None
    kind, choices = HOST, TunedChoices()
    if info:
        tunings = Tunings(info.identity, info.model.relatives)
        kind, choices = info.model.measured(**tunings.speeds), tunings.choices
    tuning = tuning_of(kind, precision, storage, Padding(align=options.align), choices)
    table = parameter_table(model.graph, frozen_parameters(model.graph, frozen_patterns(options, model) or ()))
    world, shards = _world(options, training)
    build: Any = Optimizer.named(options.optimizer or "adam")  # Every one has a default rate.
    steps = TrainingSettings(optimizer=build(), shards=shards)
    own = shards // world.size
    at_once = counts_at_once(kind, own)[0]
    sums = sums_of(model.graph, table, steps, world, at_once=at_once)
    settings, size = of_shards(kind, sums, shards, own), options.batch_size // shards * at_once
    settings |= {"loss": loss, "training": training, "recompute": options.recompute}
    plan = make_plan(model.graph, size, tuning=tuning, parameters=table, **settings)
    where = info.name if info else f"a {kind.name}"
    title = f"{name}, {'training' if training else 'inference'}, batch {size}, kernels for {where}"
    print(f"{title}\n")
    memory: dict[str, int] = {}
    updates: list[KernelCall] = []
    if training:
        memory = {
            name: FLOAT32.itemsize * elements for name, elements in memory_of(steps, table, sums, storage).items()
        }
        updates = steps.optimizer.calls(table, kind, scaled=storage.needs_loss_scale)
    if storage != FLOAT32:
        products = "convolutions multiply them on tensor cores" if tuning.precision == precision else "in memory alone"
        print(f"Numbers between layers are {storage.name}, {products}: kernels compute in float32.\n")
    print(report(plan, reserved=memory, updates=len(updates), limits=limits))
    if options.devices:
        print("\n" + "\n".join(_devices_text(options, shards, at_once, sums, kind)))
    if tail:
        print(f"\nOn the host, in NumPy, after the network: {', '.join(tail)}")
    if options.plot is not None:
        plots.save(plots.memory(plan, reserved=memory, updates=updates, title=title), options.plot)
        print(f"saved {options.plot}", file=sys.stderr)
    return 0


def _world(options: argparse.Namespace, training: bool) -> tuple[World, int]:
    """So many ranks as --devices says, and the shards of a batch."""
    world = World()
    if not options.devices:
        for name in ("shards", "step_time", "devices_per_host"):
            if getattr(options, name) is not None:
                raise OptionError(f"--{name.replace('_', '-')}", "it is for a plan with --devices")
        return world, 1
    if not training:
        raise OptionError("--devices", "gradients alone are exchanged: a plan for training must be asked for")
    world.size = options.devices
    shards = options.shards or max(SHARDS, options.devices)
    check_world(world, shards, options.batch_size)
    on_a_host = options.devices_per_host or options.devices
    if options.devices % on_a_host or on_a_host & (on_a_host - 1):
        rule = "it must be a power of two, and divide the devices"
        raise OptionError("--devices-per-host", rule, devices=options.devices, devices_per_host=on_a_host)
    return world, shards


def _devices_text(
    options: argparse.Namespace, shards: int, at_once: int, sums: Sums, kind: DeviceModel
) -> Iterator[str]:
    """Yield the text about what devices exchange in a step, and how long that takes."""
    count, size = options.devices, options.batch_size
    on_a_host = options.devices_per_host or count
    yield (
        f"{'devices':<20}{count}, {on_a_host} a host; a batch of {size} in {counted(shards, 'shard')} of "
        f"{size // shards}, {shards // count} a device{f', {at_once} at once' if at_once > 1 else ''}"
    )
    beside = FLOAT32.itemsize * sum(sums.memory().values())
    yield f"{'sums':<20}{format_bytes(beside)} a device, beside the gradients"
    near = scaling.PROCESSES if kind.is_host else scaling.PROCESSES.behind(scaling.PAGE_LOCKED)
    ways = [near] if kind.is_host else [near, scaling.COPIES]
    for number, inner in enumerate(ways):
        if number and on_a_host == count:
            exchanged = [scaling.at_once(sums, count, inner)]
        else:
            exchanged = scaling.levels(sums, count, on_a_host, inner, scaling.HOSTS)
        if not number:
            sent = sum(level.bytes for level in exchanged)
            when = f"{counted(len(sums.parts), 'bucket')}, {'within' if len(sums.parts) > 1 else 'after'}"
            yield f"{'exchanged':<20}each sends {format_bytes(sent)} a step, in {when} the backward pass"
            for level in exchanged:
                yield f"{f'  distance {level.distance}':<20}{format_bytes(level.bytes)}"
        links = " and ".join(dict.fromkeys(f"{each.link.name} ({each.link.source})" for each in exchanged))
        yield f"{'predicted':<20}{1e3 * sum(level.seconds for level in exchanged):.3g} ms through {links}"
        if options.step_time is not None:
            share = scaling.efficiency(options.step_time / 1e3, exchanged)
            yield f"{'  efficiency':<20}{share:.3f} of {count} devices at least, with steps of {options.step_time:g} ms"


def _model(options: argparse.Namespace) -> tuple[Model, str, tuple[str, ...]]:
    """The model in a file, or one for the shape of the options; and the nodes that the host computes after it."""
    if not is_model_file(options.model):
        source = find_model(options.model)
        return build_for(source, None, options.classes, options.input_shape), source.text, ()
    is_onnx = options.model.endswith(".onnx")
    if options.classes or (options.input_shape and not is_onnx):
        rule = "a model in a file has its shape: --input-shape and --classes are for others"
        raise OptionError("MODEL", rule, file=options.model)
    try:
        return open_model(options.model, options.input_shape), options.model, ()
    except UnsupportedError:
        network = onnx.Session(options.model).network(options.input_shape)
    if network.model is None:
        raise OptionError(options.model, "a plan is that of a device, and the host does all", nodes=network.tail)
    return network.model, options.model, network.tail


def _device(options: argparse.Namespace) -> DeviceInfo | None:
    """The device to plan for, if one is named, or there is one and no --memory."""
    if not (options.device or (options.memory is None and discovery.devices())):
        return None
    info = discovery.choose(options.device)
    discovery.check_precision(info, options.precision)
    return info


def _limits(options: argparse.Namespace, info: DeviceInfo | None) -> Limits | None:
    """The memory to fit, where it is known."""
    if options.memory is not None:
        return Limits("--memory", options.memory, options.memory)
    return Limits(info.name, info.memory, info.largest_allocation) if info else None
