"""Runs every kernel on small odd shapes in Oclgrind (`python -m tests.oclgrind_smoke`): bounds, races, unset values.

Layers run in hostile memory (blobnet/examination/measured.py), with the tunables of CPUs and of GPUs; convolutions and
dense layers by each implementation in the registry, in each direction; losses, optimizers and what is left of kernels/
after them; and 500 random contractions, compiled. What was run is counted against the registry and the files of
kernels/: what was missed is a finding. ``--quick`` is CI's part: every kernel and implementation once, a few
contractions, no unset values.

Every finding is printed with its kernel and configuration; the exit status is 1 if there is one. Without Oclgrind
(Debian's package ``oclgrind``) nothing runs, and the reason is printed.

NOTE: reads behind a blob but inside its buffer are allowed (READ_OVERRUN); ``--overrun`` makes that margin smaller.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.kinds import tuning_for

if TYPE_CHECKING:
    from blobnet.device.device import Device
    from blobnet.device.memory import Guarded
    from blobnet.implementations.base import Implementation
    from blobnet.launch.kernel_call import KernelCall, Tuning
    from blobnet.losses import Loss
    from tests.layers.arranged import Bench
    from tests.layers.test_every_implementation import Drawn

LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
#: The most of some tunables: Oclgrind runs some ten million instructions a second.
SMALL = {"GROUP_WIDTH": 32, "MAXIMUM_SPLITS": 4}
#: What is looked for at once, bounds always, and whether that is values that nobody set.
PARTS = {"races": False, "unset": True}
#: Multiply-adds of an operation that an implementation is run on.
WORK = 5_000
#: For the check of unset values, which is slower still, and (in Oclgrind 21.10) ends the process or finds what is not
#: there at some vectors: one lane.
ONE_LANE = {"MAXIMUM_LANES": 1, "LANES": 1, "MAXIMUM_UNITS": 3, "MAXIMUM_COLUMNS": 3, "MAXIMUM_VECTORS": 2}
#: A kernel with one mistake of each kind, to see that they are found.
WRONG = """
__kernel void wrong(__global const float *from, __global float *to)
{
    __local float shared[8];
    float unset[2];
    unset[get_global_id(0) & 1] = from[0];
    to[8 + get_global_id(0)] = unset[1 - (get_global_id(0) & 1)]; /* a value that nobody set */
    to[16] = get_global_id(0);                                    /* a race */
    shared[get_local_id(0)] = from[64 + get_global_id(0)];        /* out of bounds */
    to[get_global_id(0)] = shared[get_local_id(0) ^ 1];           /* no barrier */
}
"""
EXPECTED = ("Invalid read", "data race at global", "data race at local")


class Findings:
    """What Oclgrind writes to stderr while a block runs: ``with findings: ...``, then ``findings.found``."""

    def __init__(self) -> None:
        #: Each finding of the last block once: its kind, kernel and source line.
        self.found: list[str] = []

    def __enter__(self) -> None:
        self._file = tempfile.TemporaryFile("w+")
        self._stderr = os.dup(2)
        os.dup2(self._file.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        with self._file as file:
            file.seek(0)
            self.found = self._parsed(file.read())

    def _parsed(self, text: str) -> list[str]:
        found: list[str] = []
        for line in text.splitlines():
            if line and not line[0].isspace():
                found.append(re.sub(r"0x[0-9a-f]+", "...", line))
            elif line.strip().startswith(("Kernel", "At line", "Function:", "Error:")) and found:
                found[-1] += f"; {line.strip()}"
        # pyopencl asks for properties that Oclgrind does not know, and for a kernel '_source'; compilers warn.
        others = ("clGetDeviceInfo", "'_source'", "warning generated", "warnings generated")
        ours = [finding for finding in found if not any(word in finding for word in others)]
        return list(dict.fromkeys(ours))


def prepare() -> None:
    """Points the OpenCL loader at Oclgrind, with all its checks on. Must come before pyopencl is imported."""
    folder = Path(tempfile.mkdtemp(prefix="blobnet-oclgrind-"))
    (folder / "oclgrind.icd").write_text(f"{LIBRARY}\n")
    os.environ |= {
        "OCL_ICD_VENDORS": str(folder),
        "BLOBNET_DEVICE": "Oclgrind",
        "XDG_CACHE_HOME": str(folder),
        "OCLGRIND_MAX_ERRORS": "1000000",
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOCAL_MEM_SIZE": "131072",
        # NOTE: an optimizer may remove a race or a bad read, and puts in 'freeze', at which Oclgrind 21.10 gives up.
        # So it does at what the compiler puts in for restrict parameters of inlined functions.
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable -Drestrict=",
    }


def checked_device(unset_values: bool, kernels: set[str]) -> Device:
    """An Oclgrind device, which adds to ``kernels`` the names of those that are bound to be launched.

    Its buffers are filled by writes, since Oclgrind does not see what clEnqueueFillBuffer sets.
    """
    import pyopencl as cl

    from blobnet.device.device import Device
    from blobnet.device.memory import Memory
    from blobnet.device.programs import Programs

    class RecordingPrograms(Programs):
        def kernel(self, source: str, entry: str, what: str) -> cl.Kernel:
            kernels.add(entry)
            return super().kernel(source, entry, what)

        def build_ahead(self, *_: Any, **__: Any) -> None:
            """In child processes, which build for Oclgrind as everywhere: programs would be built twice."""

    class WritingMemory(Memory):
        def allocate_together(self, sizes: Sequence[int]) -> list[cl.Buffer]:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            return [cl.Buffer(self.queue.context, flags, hostbuf=bytes(size)) for size in sizes]

        def allocate_guarded(self, size: int) -> Guarded:
            """A buffer of its own, not within another.

            So its very ends are seen. Where one begins within another, what is written to it is noted at a wrong place.
            """
            guarded = super().allocate_guarded(size)
            guarded.buffer = self.allocate(guarded.buffer.size)
            return guarded

        def fill_zero(self, buffer: cl.Buffer, size: int) -> None:
            self.write(buffer, np.zeros(size // 4, np.uint32))

    os.environ |= {"OCLGRIND_UNINITIALIZED": "1"} if unset_values else {}
    device = Device("Oclgrind")
    device.memory = WritingMemory(device.queue)
    device.programs = RecordingPrograms(device.queue.context, device.info)
    return device


def limited(kind: str, limits: Mapping[str, int], **settings: Any) -> Tuning:
    """A tuning in which no tunable is above its limit, with more ``settings`` of :func:`tuning_for`."""
    from blobnet.launch.kernel_source import LANES, all_kernels, load

    model = tuning_for(kind).model
    overrides: dict[str, dict[str, int]] = {}
    for kernel in all_kernels():
        source = load(kernel)
        if model.is_simt and any(LANES not in tunable.defaults for tunable in source.tunables.values()):
            continue  # It is for devices that vectorize a work-item's loops.
        values = source.tuning(model)
        overrides[kernel] = {
            name: min(values[name], source.tunables[name].within(limits[name]))
            for name in limits.keys() & values.keys()
        }
    return tuning_for(kind, overrides, **settings)


def mistakes_not_found(device: Device, findings: Findings, expected: Sequence[str]) -> list[str]:
    """Kinds of mistakes of WRONG that Oclgrind did not report."""
    with findings:
        buffers = [device.memory.allocate(4 * 64) for _ in range(2)]
        kernel = device.programs.kernel(WRONG, "wrong", "kernel with mistakes")
        kernel.set_args(*buffers)
        device.queue.prepare(kernel, (8, 1, 1), (8, 1, 1))()
        device.queue.finish()
    return [kind for kind in expected if not any(kind in finding for finding in findings.found)]


def layer_cases() -> Iterator[tuple[Any, Any, int]]:
    """(layer, input shapes, samples)."""
    from blobnet import layers
    from blobnet.memory.blob import Shape

    yield layers.Conv2D(5, 3, padding=1), [Shape(3, 5, 7)], 2
    yield layers.Conv2D(4, (2, 3), stride=(2, 3), padding="same", groups=2, bias="position"), [Shape(2, 6, 8)], 2
    yield layers.Conv2D(3, 2, dilation=3, padding=((0, 3), (2, 1)), bias=False), [Shape(1, 4, 19)], 1
    yield layers.Conv2D(6, 1, stride=2), [Shape(7, 3, 3)], 3
    yield layers.Conv1D(3, 4, padding="same"), [Shape(2, 37)], 2
    yield layers.Conv1D(5, 3), [Shape(130, 3)], 2
    yield layers.Dense(7), [Shape.flat(19)], 5
    yield layers.Dense(3, bias=False), [Shape(2, 3, 17)], 2
    yield layers.MaxPool2D(2), [Shape(3, 5, 7)], 2
    yield layers.MaxPool2D(3, stride=2, padding=1), [Shape(2, 5, 6)], 2
    yield layers.AveragePool2D(3, stride=1, padding=1), [Shape(2, 4, 5)], 2
    yield layers.AveragePool2D((2, 3), stride=(3, 2)), [Shape(2, 8, 7)], 2
    yield layers.MaxPool1D(3), [Shape(2, 11)], 2
    yield layers.GlobalAveragePool(), [Shape(3, 5, 7)], 2
    yield layers.BatchNorm(), [Shape(3, 5, 7)], 3
    yield layers.Dropout(0.3), [Shape(3, 3, 5)], 2
    yield layers.Activation("gelu"), [Shape(3, 5, 7)], 2
    yield layers.Activation("softmax"), [Shape(3, 3, 5)], 2
    yield layers.Add(), [Shape(2, 3, 5)] * 3, 2
    yield layers.Concat(), [Shape(2, 3, 5), Shape(3, 3, 5)], 2
    yield layers.Flatten(), [Shape(2, 3, 5)], 2


def run_layer(device: Device, layer: Any, shapes: Any, count: int, arrangement: Any, tuning: Tuning) -> None:
    """All phases of a layer."""
    from tests.layers.arranged import Bench, make_problem

    run_bench(Bench(device, make_problem(layer, shapes, count=count), arrangement, tuning))


def kinds_of(item: type[Implementation]) -> list[str]:
    """Of devices that an implementation is for."""
    return [kind for kind, are_lanes in (("cpu", False), ("gpu", True)) if item.lanes in (None, are_lanes)]


def operations(name: str, variant: str, tuning: Tuning, seed: int) -> Iterator[Drawn]:
    """Random ones, of about WORK multiply-adds, for each direction of a variant of an implementation."""
    from blobnet.implementations import IMPLEMENTATIONS
    from tests.layers.test_every_implementation import directions, draw, in_cells

    def distance(case: Drawn) -> int:
        layer, shape, count = case
        (weight, *_), output = layer.parameters([shape]), layer.output_shape([shape])
        return abs(count * weight.elements * output.elements // output.units - WORK)

    item, generator = IMPLEMENTATIONS[name], np.random.default_rng(seed)
    left, drawn = set(item.directions), [draw(generator, item.families) for _ in range(300)]
    for case in sorted(map(in_cells, drawn) if item.needs_cells else drawn, key=distance):
        if not left:
            return
        taken = directions({variant}, case, tuning) & left
        left -= taken
        if taken:
            yield case


def run_implementation(
    device: Device, name: str, case: Drawn, arrangement: Any, tuning: Tuning, reached: set[tuple[str, str, str]]
) -> None:
    """All phases of a layer; adds (implementation, variant, direction) of what was at work to ``reached``.

    Weights lie in memory as blobs do.
    """
    from blobnet.examination.checks import PHASE_OF
    from blobnet.implementations import IMPLEMENTATIONS
    from blobnet.memory.blob import FLOAT32
    from tests.layers.arranged import Bench, make_problem

    layer, shape, count = case
    weights = FLOAT32 if tuning.storage.cell > 1 else tuning.storage
    problem = make_problem(layer, [shape], count=count, storage=tuning.storage, weights=weights)
    bench = Bench(device, problem, arrangement, tuning)
    run_bench(bench)
    for direction, phase in PHASE_OF.items():
        used = {call.way.variant for call in bench.calls.get(phase, ()) if call.way}
        reached |= {(name, variant, direction) for variant in used & set(IMPLEMENTATIONS[name].variants)}


def run_bench(bench: Bench) -> None:
    """All phases of a layer that has its memory."""
    bench.load()
    bench.run("forward", debug=False)
    if not bench.full.training:
        return
    bench.load_deltas()
    bench.run("backward parameters", debug=False)
    bench.run("backward data", debug=False)


def run_step(device: Device, loss: Loss, tuning: Tuning, *, at_positions: bool = False) -> None:
    """One training step, without the optimizer, of a small network with a batch that is not full."""
    from blobnet import layers
    from blobnet.execution.executor import Executor
    from blobnet.network import graph
    from blobnet.planning import make_plan

    source = layers.Input(1, 6, 7)()
    node = layers.MaxPool2D(2)(layers.Conv2D(3, 3, padding=1)(source))
    if not at_positions:
        node = layers.Dense(4)(layers.Flatten()(layers.Activation("relu")(node)))
    plan = make_plan(graph.from_nodes(source, node), 3, loss=loss, training=True, tuning=tuning)
    executor = Executor(device, plan)
    generator = np.random.default_rng(0)
    executor.write_array("parameters", generator.uniform(0.5, 1, plan.request.parameters.elements).astype(np.float32))
    executor.write_array("samples", generator.standard_normal(2 * 42).astype(np.float32))
    count = 2 * loss.label_elements(node.shape)
    labels = (
        generator.integers(-1, node.shape.units, count, np.int32) if loss.takes_classes else generator.random(count)
    )
    labels = labels.astype(np.int32 if loss.takes_classes else np.float32)
    executor.write_array("labels", labels)
    for phase in ("forward", "loss", "backward"):
        executor.run(phase, 2)
    device.queue.finish()


def run_alone(device: Device, call: KernelCall, count: int = 2) -> None:
    """One launch, on memory of zeros but for its table: classes, rows and numbers of steps are 0 then."""
    from blobnet.execution.executor import bind
    from blobnet.launch.kernel_call import Batch
    from blobnet.planning import memory

    sizes: dict[str, int] = {}
    ends = [(blob, count * blob.layout.memory_elements) for blob in call.blobs.values()]
    for place, end in [*ends, *((array, array.end(count)) for array in call.arrays.values())]:
        size = place.type.itemsize * (end + memory.READ_OVERRUN)
        sizes[place.storage] = max(size, sizes.get(place.storage, 0))
    buffers = {storage: device.memory.allocate(size) for storage, size in sizes.items()}
    if call.combines:
        table = call.arrays["TABLE"]
        device.memory.write(buffers[table.storage], np.array(call.table, np.int32), table.type.itemsize * table.offset)
    for item in bind(device, [call], buffers, Batch(count)):
        item.enqueue()
    device.queue.finish()


def measure_roofline(device: Device) -> None:
    """What ``blobnet bench`` measures a device by, with little work."""
    from blobnet.bench import roofline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline, "_BYTES", dict.fromkeys(roofline._BYTES, 1 << 20))
        patch.setattr(roofline, "_ITEM_BYTES", dict.fromkeys(roofline._ITEM_BYTES, 1 << 10))
        patch.setattr(roofline, "_ITEMS", dict.fromkeys(roofline._ITEMS, 128))
        patch.setattr(roofline, "_STEPS", 1)
        patch.setattr(roofline, "_REPEATS", dict.fromkeys(roofline._REPEATS, 1))
        patch.setattr(roofline, "_SECONDS", 0)
        roofline.measure(device)


def cases(
    device: Device, limits: Mapping[str, int], kernels: set[str], *, quick: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    """(configuration, a function that runs it); each is asked for when those before it have run.

    The last ones see that nothing was missed. ``kernels`` are the names of those that were launched so far.
    """
    from blobnet import layers, losses
    from blobnet.implementations import IMPLEMENTATIONS
    from blobnet.launch.kernel_source import all_kernels, load
    from blobnet.memory.blob import BFLOAT16_CELLS, FLOAT16, FLOAT32, Shape
    from tests.kinds import CELLS_OF_NUMBERS
    from tests.layers.arranged import Arrangement
    from tests.layers.test_every_kernel import compared_calls

    arrangements = (
        Arrangement("tight", tight=True, same_pitch=True, accumulate=True),
        Arrangement("own pitches", accumulate=True),
        Arrangement("one pitch", same_pitch=True),
    )
    tunings = {kind: limited(kind, limits) for kind in ("cpu", "gpu")}
    lanes = " in one lane" if "LANES" in limits else ""
    if not quick:
        for kind, tuning in tunings.items():
            for layer, shapes, count in layer_cases():
                on = f"{layer} on {' '.join(map(str, shapes))}, count {count}"
                for arrangement in arrangements:
                    run = partial(run_layer, device, layer, shapes, count, arrangement, tuning)
                    yield f"{on}, {arrangement.name}, tunables of a {kind}{lanes}", run

    # Norms of cells, whose numbers warps sum: in stages (one unit leaves a compute unit without work), and by units.
    of_cells = limited("gpu", limits, storage=BFLOAT16_CELLS, compute_units=2)
    for shape in (Shape(8, 23, 25), Shape(16, 5, 7)):
        run = partial(run_layer, device, layers.BatchNorm(), [shape], 2, arrangements[0], of_cells)
        yield f"BatchNorm on {shape}, count 2, cells{lanes}", run

    inference = Arrangement("an epilogue", own_zeros=True, training=False, chain=("residual", "relu"))
    ways = ((arrangements[0], FLOAT32), (inference, FLOAT16))
    # The variants of an implementation are the same kernels with other sizes.
    most = 1 if quick else None
    reached: set[tuple[str, str, str]] = set()
    # Patches of 8, whose sums go to totals, which no small random operation comes to.
    more = {"winograd4": [(layers.Conv2D(3, 5, padding=2), Shape(9, 5, 6), 2)]}
    # Generated kernels have vectors however few lanes others may have.
    known = {name: item for name, item in IMPLEMENTATIONS.items() if name != "compiled" or not lanes}
    for name, item in known.items():
        precision = item.precisions[-1]
        for kind, variant in product(kinds_of(item)[:most], item.variants[:most]):
            settings: Any = {"only": {variant}, "compute_units": 2, "precision": precision}
            for seed, (arrangement, storage) in enumerate(ways[:most]):
                kept = CELLS_OF_NUMBERS[storage] if item.needs_cells else storage
                alone = limited(kind, limits, storage=kept, **settings)
                for case in [*operations(name, variant, alone, seed), *(more.get(variant, ()) if seed else ())]:
                    on = f"{case[0]} on {case[1]}, count {case[2]}, {kept.name}, {arrangement.name}"
                    # A dense layer's epilogue reads no other blob.
                    chain = arrangement.chain[1:] if case[0].kind == "Dense" else arrangement.chain
                    fitting = replace(arrangement, chain=chain)
                    run = partial(run_implementation, device, name, case, fitting, alone, reached)
                    yield f"{variant} of {name}, {on}, tunables of a {kind}{lanes}", run

    def no_way_is_missed() -> None:
        wanted = {
            (name, variant, direction)
            for name, item in known.items()
            for variant, direction in product(item.variants[:most], item.directions)
        }
        print(
            f"{len({name for name, *_ in reached})} implementations of {len(IMPLEMENTATIONS)} in the registry;", end=" "
        )
        print(f"of their variants and directions {len(reached)} of {len(wanted)}")
        assert reached == wanted, f"no case takes {sorted(wanted - reached)}"

    yield "implementations", no_way_is_missed

    some = [losses.CrossEntropy(0.1), losses.Focal(), losses.Dice(), losses.BinaryCrossEntropy()]
    some += [losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber()]
    for (kind, tuning), loss in product(tunings.items(), some):
        for at_positions in (kind == "gpu",) if quick else (False, True):
            run = partial(run_step, device, loss, tuning, at_positions=at_positions)
            where = " at positions" if at_positions else ""
            yield f"training step, {loss}{where}, tunables of a {kind}{lanes}", run
    yield "roofline", partial(measure_roofline, device)

    sources = [load(name) for name in all_kernels()]
    sources += [source.of_several for source in sources if source.combined]
    entries = {source.name: source.entry for source in sources}

    def missed() -> set[str]:
        return {name for name, entry in entries.items() if entry not in kernels}

    def others() -> Iterator[Tuning]:
        """Those by whose choices the kernels that are still missed are launched."""
        yield from tunings.values()
        for name, item in IMPLEMENTATIONS.items():
            for kind in kinds_of(item):
                if missed():
                    yield limited(kind, limits, only={name}, precision=item.precisions[-1])

    for call in compared_calls(others()):
        if call.source.name in missed():
            yield f"{call.source.name} alone{lanes}", partial(run_alone, device, call)

    def no_kernel_is_missed() -> None:
        print(f"{len(entries) - len(missed())} kernels of {len(entries)} in kernels/")
        assert not missed(), f"no case launches {sorted(missed())}"

    yield "kernels", no_kernel_is_missed
    if "LANES" not in limits:
        yield "compiled contractions", partial(compiled_contractions, device, 20 if quick else 500)


def compiled_contractions(device: Device, count: int) -> None:
    """Random contractions and gradients under random schedules; small whole numbers are exact."""
    from blobnet.contraction import reference
    from blobnet.contraction.derivatives import delta_names, differentiate
    from blobnet.contraction.lowering import lower
    from blobnet.execution import contractions
    from tests.contraction.random_schedules import random_schedule
    from tests.contraction.test_compiled import bound

    rng = np.random.default_rng(0)
    for number in range(count):
        contraction, program = bound(rng)
        arrays = contraction.arrays(rng, whole=True)
        if number % 4 == 0:
            names = delta_names(program)
            for tensor in program.outputs:
                arrays[names[tensor.name]] = rng.integers(-2, 3, tensor.shape).astype(float)
            program = differentiate(program)
        lowered = lower(program, partial(random_schedule, rng=rng))
        results = contractions.Compiled(device, lowered).run(arrays)
        for name, values in reference.run(program, arrays).items():
            schedules = [str(step.schedule) for step in lowered.steps]
            if np.max(np.abs(values), where=np.isfinite(values), initial=0) < 2**24:
                np.testing.assert_array_equal(results[name], values.astype(np.float32), f"{program} {schedules}")
    print(f"{count} compiled contractions")


def main() -> int:
    """Runs all cases; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overrun", type=int, help="elements behind the last blob that vector loads may read")
    parser.add_argument("--only", default="", help="run configurations whose text contains this")
    parser.add_argument("--part", choices=list(PARTS), help="one of the two parts alone")
    parser.add_argument("--quick", action="store_true", help="every kernel and implementation once, no unset values")
    options = parser.parse_args()
    if not LIBRARY.exists():
        print(f"skipped: {LIBRARY} does not exist; install Debian's package oclgrind")
        return 0
    prepare()
    from blobnet.implementations import tiled, winograd
    from blobnet.planning import memory
    from tests.small_tiles import take_least_tiles, take_small_tiles

    if options.overrun is not None:
        memory.READ_OVERRUN = options.overrun
    patch = pytest.MonkeyPatch()
    take_small_tiles(patch)
    if options.quick:
        take_least_tiles(patch)
    # Sums of small products are split, and go to totals, too.
    patch.setattr(tiled, "MIN_ROWS", 8)
    patch.setattr(winograd, "_SUM_ROWS", 8)
    patch.setattr(memory, "_CLEAR_BYTES", 0)  # Halos are cleared in small plans, too.
    total = 0
    wanted = options.part or ("races" if options.quick else None)
    for part, unset_values in PARTS.items():
        if wanted not in (None, part):
            continue
        findings, kernels = Findings(), set[str]()
        with findings:
            device = checked_device(unset_values, kernels)
        missed = mistakes_not_found(device, findings, [*EXPECTED, "Uninitialized value"] if unset_values else EXPECTED)
        if missed:
            print(f"Oclgrind does not find mistakes of these kinds: {', '.join(missed)}")
            return 1
        print(f"{part}:", flush=True)
        limits = SMALL | ONE_LANE if unset_values else SMALL
        count = 0
        for name, run in cases(device, limits, kernels, quick=options.quick):
            if options.only not in name:
                continue
            count += 1
            wrong = []
            try:
                with findings:
                    run()
            except AssertionError as error:
                wrong.append(str(error))
            for finding in wrong + findings.found:
                print(f"{name}\n    {finding}", flush=True)
            total += len(wrong + findings.found)
        print(f"{count} configurations", flush=True)
    print(f"{total} findings")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
