"""What vendors' offline compilers make of the kernels of whole plans, for GPUs that nobody here has.

    apt-get install clang-16 rocm-device-libs     # AMD's: any gfx name that this clang knows
    apt-get install intel-opencl-icd              # Intel's, whose program is ocloc; see below
    python tests/bench/spills.py [MODEL...] [--gpu NAME...] [--batch-size 64] [--jobs 2] [--all]
    python tests/bench/spills.py contractions [...]
    python tests/bench/spills.py zoo [...]        # all networks: 2,660 programs for gfx1030, at 0.4 s
    python tests/bench/spills.py --quick          # what CI runs: lenet5, on a GPU of each

A plan for training and one for inference are made with what is known of each GPU, and every program of them is
compiled. What spills, or keeps arrays in memory, is listed with its share of its plan's flops: of those directions of
layers that it takes part in, be it with all of their arithmetic or none; and so are products of over 1 % of the flops
whose inner loops have less than 0.6 multiply-adds for each instruction (Fourier's and Winograd's transforms are none).
--all lists the others as well. The exit status is 1 if a program of over 1 % of the flops spills. `contractions` are
the convolutions of `blobnet bench conv anchors` in all directions, as the contraction compiler makes them for each GPU;
a kernel's share is that of its direction's terms.

    registers  what a work-item has; Intel's compiler takes all there are
    spilled    registers that lie in memory for some of the time; Intel's are those of a thread, of 32 or 64 bytes
    scratch    bytes of memory that a work-item (Intel's: a thread) needs for these, and for arrays
    local      bytes of local memory of a work-group
    lanes      work-items of a wave or thread
    waves      AMD's: those that registers and local memory leave room for on a SIMD, as clang says (of 10 on GCN, 8 on
               CDNA, 16 on RDNA); Intel's: threads of an execution unit, as local memory leaves room for (of 7 or 8)
    loop       instructions of the inner loop, for a wave or thread (inner_loop.py)
    share      multiply-adds among them

What the compilers said is kept in $XDG_CACHE_HOME/blobnet/spills. The package with ocloc has an OpenCL driver as well,
which tests should not see: before it is installed,
`dpkg-divert --add --rename --divert /etc/OpenCL/intel.icd /etc/OpenCL/vendors/intel.icd`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import contraction
import inner_loop

from blobnet.command_line.model_argument import find_model, known_models
from blobnet.contraction.analysis import flops as flops_of
from blobnet.contraction.calls import launches
from blobnet.contraction.lowering import lower
from blobnet.contraction.search import best_schedule
from blobnet.contraction.source import program_text
from blobnet.contraction.training import passes
from blobnet.device.compiler import BUILD_OPTIONS, preamble
from blobnet.device.tuning import Tunings
from blobnet.examination import layer_cases
from blobnet.hardware.device_model import Answers, DeviceModel, model_of
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.launch.kernel_call import Array, KernelCall, Tuning
from blobnet.layers.lowered import ContractionLayer
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FLOAT32, Shape
from blobnet.planning import Plan, make_plan
from blobnet.support.tables import Table
from blobnet.support.user_cache import cache_folder

sys.path.append(str(Path(__file__).parents[2]))
from tests.amd.compiler import BITCODE, TARGET, VERSION, target_options

#: A direction of a layer: the number of its vertex, and the direction.
Part = tuple[int | None, str]
MODELS = ("resnet50", "mobilenet_v2", "vgg16")
#: The part of a plan's flops from which on a program counts, and of an inner loop's instructions that should multiply
#: and add; how many of them make it that of a product.
_LARGE, _WANTED, _MIN_MULTIPLY_ADDS = 0.01, 0.6, 8
#: Kernels whose names begin so multiply and add, but make no product.
_TRANSFORMS = "convolution/fourier_", "convolution/winograd_"
#: What --quick compiles, and for which GPUs.
_QUICK_MODELS, _QUICK_GPUS = ("lenet5",), ("gfx1030", "dg2")
#: Intel's GPUs by ocloc's names, and what their driver answers.
INTEL = {
    "cfl": ("Intel(R) UHD Graphics 630 [0x3e92]", 24, 256, 1 << 16),
    "tgllp": ("Intel(R) Iris(R) Xe Graphics [0x9a49]", 96, 512, 1 << 16),
    "dg2": ("Intel(R) Arc(TM) A770 Graphics", 512, 1024, 1 << 16),
    "pvc": ("Intel(R) Data Center GPU Max 1100", 448, 1024, 1 << 17),
}
#: AMD's, by the names of their instruction sets, and their compute units. ROCm allows 256 work-items a group.
AMD = {"gfx906": 60, "gfx90a": 104, "gfx1030": 36, TARGET: 16}


@dataclass(frozen=True)
class Compiled:
    """What a compiler says of a kernel; see above."""

    registers: int
    spilled: int
    scratch: int
    local: int
    lanes: int
    waves: int
    loop: inner_loop.Loop

    @property
    def spills(self) -> bool:
        """Whether anything that should be in registers is not."""
        return self.spilled > 0 or self.scratch > 0


@dataclass
class Program:
    """A program of one or both plans: its first call, and its share of the flops of a plan, of two the larger."""

    call: KernelCall
    share: float = 0.0


def device(gpu: str) -> DeviceModel:
    """What is known of a GPU before anybody has asked it."""
    if gpu in INTEL:
        name, units, group, local = INTEL[gpu]
        driver = "Intel(R) Corporation", "Intel(R) OpenCL Graphics"
        return model_of(Answers(name, *driver, compute_units=units, group_size=group, local_memory=local))
    driver = "Advanced Micro Devices, Inc.", "AMD Accelerated Parallel Processing"
    return model_of(Answers(gpu, *driver, compute_units=AMD.get(gpu, 40), group_size=256, local_memory=1 << 16))


def programs_of(name: str, gpu: str, batch_size: int) -> dict[str, Program]:
    """The programs of a model's plans, by their texts."""
    model, known = find_model(name).function(), device(gpu)
    tuning = Tuning(known, choices=Tunings({"device": known.name}, known.relatives).choices)
    programs: dict[str, Program] = {}
    for training in (True, False):
        loss = CrossEntropy() if training else None
        plan = make_plan(model.graph, batch_size, training=training, loss=loss, tuning=tuning)
        shares = flops_shares(plan, batch_size)
        parts: dict[str, set[Part]] = {}
        for _, call in plan.calls:
            text = call.assemble()
            programs.setdefault(text, Program(call))
            parts.setdefault(text, set()).add((call.vertex, call.direction))
        for text, of_layers in parts.items():
            share = sum(shares.get(part, 0) for part in of_layers)
            programs[text].share = max(programs[text].share, share)
    return programs


def compiled_contractions(gpu: str, batch_size: int) -> dict[str, Program]:
    """The kernels that the contraction compiler makes of convolutions, by their texts."""
    programs: dict[str, Program] = {}
    choose = functools.partial(best_schedule, device=device(gpu))
    for case in layer_cases.suite("anchors"):
        for phase in contraction.PHASES:
            lowered = lower(contraction.program(case, batch_size, phase), choose)
            operands = {name: Array(name, size) for name, size in lowered.elements.items()}
            total = sum(step.table.points for step in lowered.steps)
            for step, call in zip(lowered.steps, launches(lowered, operands, f"{case} {phase}"), strict=True):
                programs.setdefault(program_text([step.kernel]), Program(call, step.table.points / total))
    return programs


def flops_shares(plan: Plan, batch_size: int) -> dict[Part, float]:
    """The share of a plan's flops that each direction of each layer has."""
    flops: dict[Part, int] = {}
    for number, phase in {(call.vertex, call.direction) for _, call in plan.calls if call.vertex is not None}:
        vertex = plan.request.graph.vertices[number]
        shapes_in = tuple(plan.request.graph.input_shapes(vertex))
        if vertex.layer.kind in (*layer_cases.CONVOLUTIONS, *layer_cases.OTHERS):
            case = layer_cases.Case(vertex.layer, shapes_in[0])
            for direction in case.directions:
                if phase.startswith(direction):
                    flops[number, phase] = case.work(direction, batch_size).flops
        elif isinstance(vertex.layer, ContractionLayer):
            flops[number, phase] = compiled_flops(vertex.layer, shapes_in, batch_size).get(phase, 0)
    return {part: value / sum(flops.values()) for part, value in flops.items()}


@functools.cache
def compiled_flops(layer: ContractionLayer, inputs: tuple[Shape, ...], batch_size: int) -> dict[str, int]:
    """The flops of each direction of a layer that the contraction compiler makes."""
    bound = layer.bound(inputs, batch_size)
    trained = [spec.name for spec in layer.parameters(inputs) if spec.trainable]
    wanted = [*((BACKWARD_WEIGHTS, name) for name in trained), *((BACKWARD_DATA, name) for name in bound.inputs)]
    steps = passes(bound.program, [name for _, name in wanted])
    found = Counter({FORWARD: sum(map(flops_of, steps.forward.statements))})
    for (direction, _), part in zip(wanted, steps.gradients, strict=True):
        found[direction] += sum(map(flops_of, part.statements))
    return dict(found)


# -- compilers ---------------------------------------------------------------------------------------------------------


def compiled(program: Program, text: str, gpu: str) -> Compiled:
    """What a program's kernel needs on a GPU, from the cache if it was compiled before."""
    command = compiler_of(gpu)
    text = preamble(device(gpu)) + text
    items = math.prod(program.call.local_size or (1,))
    known = [version(command), readers(), *BUILD_OPTIONS, str(items), text]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]
    kept = cache_folder() / "spills" / gpu / f"{digest}.json"
    if kept.exists():
        facts = json.loads(kept.read_text(encoding="utf-8"))
        return Compiled(**facts | {"loop": inner_loop.Loop(**facts["loop"])})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cl"
        source.write_text(text, encoding="utf-8")
        found = by_ocloc(source, gpu, items) if gpu in INTEL else by_clang(source, gpu)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(found)), encoding="utf-8")
    return found


def compiler_of(gpu: str) -> str:
    return "ocloc" if gpu in INTEL else "clang-16"


@functools.cache
def version(command: str) -> str:
    """What a compiler says that it is."""
    option = "--version" if command != "ocloc" else "--help"
    return subprocess.run([command, option], capture_output=True, text=True, check=False).stdout


@functools.cache
def readers() -> str:
    """The code that reads compilers' output."""
    return "".join(inspect.getsource(code) for code in (by_clang, by_ocloc, newest, resident_threads, inner_loop))


def by_clang(source: Path, gpu: str) -> Compiled:
    """AMD's: the numbers are in the metadata of the assembly."""
    command = ["clang-16", "-x", "cl", *BUILD_OPTIONS, "-Xclang", "-finclude-default-header", "-O3", "-S"]
    if gpu == TARGET:
        source.write_text(VERSION + source.read_text(encoding="utf-8"), encoding="utf-8")
        command += target_options()
    else:
        command += ["-target", "amdgcn-amd-amdhsa", f"-mcpu={gpu}", f"--rocm-device-lib-path={BITCODE}"]
    assembly = source.with_suffix(".s")
    run([*command, str(source), "-o", str(assembly)])
    text = assembly.read_text(encoding="utf-8")

    def number(name: str) -> int:  # Of a program's kernels the largest.
        return max(map(int, re.findall(rf"\.{name}: +(\d+)", text)))

    return Compiled(
        number("vgpr_count"),
        number("vgpr_spill_count"),
        number("private_segment_fixed_size"),
        number("group_segment_fixed_size"),
        number("wavefront_size"),
        min(map(int, re.findall(r"; Occupancy: (\d+)", text))),
        inner_loop.inner_loop(text),
    )


def by_ocloc(source: Path, gpu: str, items: int) -> Compiled:
    """Intel's, with ``items`` work-items a group: a warning says what spills; its compiler dumps the rest if asked."""
    folder = source.parent
    command = ["ocloc", "compile", "-file", str(source), "-device", gpu, "-out_dir", str(folder / "out")]
    environment = {"IGC_EnableCosDump": "1", "IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": str(folder)}
    said = run([*command, "-options", " ".join(BUILD_OPTIONS)], environment)
    facts, assembly = newest(folder, ".cos"), "".join(newest(folder, ".asm").values())

    def number(name: str, where: Iterable[str] = facts.values()) -> int:
        return max(int((re.findall(rf"{name} *=? *(\d+)", text) or [0])[-1]) for text in where)

    local, lanes = number("TotalInlineLocalMemorySize"), number("LargestCompiledSIMDSize")
    return Compiled(
        number("NumGRFRequired"),
        number("spilled around", [said]),
        number("PerThreadScratchSpace") + number("PerThreadPrivateMemorySize"),
        local,
        lanes,
        resident_threads(device(gpu), -(-items // max(1, lanes)), local),
        inner_loop.inner_loop(assembly),
    )


def newest(folder: Path, suffix: str) -> dict[str, str]:
    """What Intel's compiler dumped last of each kernel: it tries several times, in the end those that spill alone."""
    made = sorted(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime_ns)
    last = {path.stem.rpartition("_entry_")[2]: path for path in made}
    return {entry: path.read_text(encoding="utf-8") for entry, path in last.items()}


def resident_threads(model: DeviceModel, threads: int, local: int) -> int:
    """Threads of an Intel execution unit, for work-groups of so many threads and bytes of local memory."""
    assert model.register_file
    assert model.core_memory
    most = model.register_file // (FLOAT32.itemsize * model.registers * model.lanes)
    groups = max(1, most * model.units_of_core // threads)
    if local:
        groups = min(groups, max(1, model.core_memory // local))
    return min(most, -(-groups * threads // model.units_of_core))


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command says.

    Raises:
        SystemExit: it fails.
    """
    settings = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# -- tables ------------------------------------------------------------------------------------------------------------


def is_product(call: KernelCall, found: Compiled) -> bool:
    """Whether a launch multiplies for a layer, and its inner loop more than it must for addresses."""
    multiplies = found.loop.multiply_adds >= _MIN_MULTIPLY_ADDS
    return bool(call.way) and multiplies and not call.kernel.startswith(_TRANSFORMS)


HEADER = ("kernel", "first use", "flops", "registers", "spilled", "scratch", "local", "lanes", "waves", "loop", "share")


def row(program: Program, found: Compiled) -> list[str]:
    """A program's line."""
    numbers = found.registers, found.spilled, found.scratch, found.local, found.lanes, found.waves
    loop = [str(found.loop.instructions), f"{found.loop.share:.2f}"] if found.loop.instructions else ["-", "-"]
    return [program.call.kernel, program.call.label, f"{program.share:.1%}", *map(str, numbers), *loop]


def main() -> None:
    """Prints a table for each model and GPU, and one of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--gpu", nargs="+", default=[*INTEL, *AMD], help="names of ocloc and clang (-mcpu)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=2, help="compilers side by side")
    parser.add_argument("--quick", action="store_true", help=f"{' '.join(_QUICK_MODELS)} for {' '.join(_QUICK_GPUS)}")
    parser.add_argument("--all", action="store_true", help="list programs that do not spill, too")
    arguments = parser.parse_args()
    if arguments.models == ["zoo"]:
        arguments.models = known_models()
    if arguments.quick:
        arguments.models, arguments.gpu = _QUICK_MODELS, _QUICK_GPUS
    for compiler in sorted(set(map(compiler_of, arguments.gpu))):
        if shutil.which(compiler) is None:
            package = "intel-opencl-icd" if compiler == "ocloc" else "clang-16 rocm-device-libs"
            of_others = [gpu for gpu in arguments.gpu if compiler_of(gpu) != compiler]
            others = f", or leave out its GPUs: --gpu {' '.join(of_others)}" if of_others else ""
            parser.error(f"{compiler} must be on the PATH. Hint: apt-get install {package}{others}.")
    summary, is_bad = [], False
    for gpu in arguments.gpu:
        for model in arguments.models:
            is_compiled = model == "contractions"
            make = compiled_contractions if is_compiled else functools.partial(programs_of, model)
            programs = make(gpu, arguments.batch_size)
            with ThreadPoolExecutor(arguments.jobs) as pool:
                results = pool.map(lambda item, gpu=gpu: compiled(item[1], item[0], gpu), programs.items())
                found = dict(zip(programs, results, strict=True))
            large = {text for text, program in programs.items() if program.share > _LARGE}
            spilling = {text for text, result in found.items() if result.spills}
            products = {text for text in large if is_product(programs[text].call, found[text])}
            slow = {text for text in products if found[text].loop.share < _WANTED}
            listed = sorted(programs if arguments.all else spilling | slow, key=lambda text: -programs[text].share)
            if listed:
                rows = [row(programs[text], found[text]) for text in listed]
                print(f"\n{model} on {gpu}\n\n{Table(HEADER, rows, '<<>>>>>>>>>')}", flush=True)
            is_bad = is_bad or bool(spilling & large)
            counts = len(programs), len(spilling), len(spilling & large), sum(found[text].spilled for text in spilling)
            shares = sorted(found[text].loop.share for text in products)
            ends = f"{shares[0]:.2f} to {shares[-1]:.2f}" if shares else "-"
            less = f"{len(slow)} of {len(products)}"
            summary.append([gpu, str(device(gpu).architecture), model, *map(str, counts), ends, less])
    header = ("GPU", "architecture", "model", "programs", "spill", "over 1 % of flops", "registers spilled")
    print(f"\n{Table((*header, 'multiply-adds', 'below 0.6'), summary, '<<<>>>>>>')}")
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
