"""Every implementation in the registry: each of its directions on random odd shapes, and what must go with it."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.examination.checks import PHASE_OF, Drawn, draw, plan_alone
from blobnet.implementations import IMPLEMENTATIONS, candidates
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.kernel_source import load
from blobnet.layers import Conv2D, Dense
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import BFLOAT16, FLOAT16, FLOAT32, StorageType
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import CELLS_OF_NUMBERS, tuning_for
from tests.layers import test_convolution_tensor, test_dense
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract

ROOT = Path(__file__).parents[2]


def tuning_of(name: str, storage: StorageType = FLOAT32) -> Tuning:
    """Of a device that has what the implementation needs, and shall use nothing else."""
    item = IMPLEMENTATIONS[name]
    kind, precision = "gpu" if item.lanes else "cpu", item.precisions[-1]
    if IMPLEMENTATIONS[name].needs_cells:
        storage = CELLS_OF_NUMBERS[storage]
    return tuning_for(kind, compute_units=2, only={name}, precision=precision, storage=storage)


def directions(variants: Collection[str], case: Drawn, tuning: Tuning) -> set[str]:
    """Those of a layer alone that one of the variants can compute."""
    layer, shape, count = case
    site = plan_alone(layer, shape, count, replace(tuning, storage=FLOAT32))[1]
    if tuning.storage.cell > 1:
        site = site.in_cells(tuning.storage)
    found = {direction: candidates(layer.operation(site, direction)) for direction in PHASE_OF}
    return {direction for direction, items in found.items() if any(item.way.variant in variants for item in items)}


def cases(name: str, times: int = 2) -> Iterator[Drawn]:
    """Random ones, until each direction was there so many times."""
    item, generator = IMPLEMENTATIONS[name], np.random.default_rng(zlib.crc32(name.encode()))
    reached: Counter[str] = Counter()
    known = set(item.directions)
    for _ in range(500):
        case = draw(generator, item.families)
        if IMPLEMENTATIONS[name].needs_cells:
            case = in_cells(case)
        taken = directions(item.variants, case, tuning_of(name))
        if any(reached[direction] < times for direction in taken):
            reached.update(taken)
            yield case
        if all(reached[direction] >= times for direction in known):
            return
    pytest.fail(f"{name} takes too few of the random operations: {dict(reached)}")


def in_cells(case: Drawn) -> Drawn:
    """The case with eight times as many units, and groups, if there are any; biases of positions have numbers."""
    layer, shape, count = case
    groups = 8 * layer.groups if layer.groups > 1 else 1
    more: dict[str, Any] = {"filters": 8 * layer.filters, "groups": groups, "bias": bool(layer.bias)}
    return replace(layer, **more), shape.with_units(8 * shape.units), count


def check(
    device: Device, name: str, case: Drawn, storage: StorageType = FLOAT32, weights: StorageType = FLOAT32
) -> ContractReport:
    """The layer contract of a case on one implementation."""
    layer, shape, count = case
    settings = {"count": count, "tuning": tuning_of(name, storage), "absolute": 5e-5, "weights": weights}
    if isinstance(layer, Dense):
        return test_dense.contract(device, layer, shape, ["tight"], None, **settings)
    if IMPLEMENTATIONS[name].precisions != ("fp32",):
        return test_convolution_tensor.exact(device, layer, shape, ["own pitches"], **settings)
    return contract(device, layer, shape, ["own pitches"], **settings)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.usefixtures("small_tiles")
def test_random_odd_shapes(device: Device, name: str) -> None:
    item, reached = IMPLEMENTATIONS[name], set()
    for case in cases(name):
        reached |= phases_of(name, check(device, name, case))
    assert reached == {PHASE_OF[direction] for direction in item.directions}


@pytest.mark.parametrize("kind", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(
    ("name", "direction", "role"),
    [
        ("gathered", FORWARD, "GATHERED"),
        ("gathered", BACKWARD_DATA, "GATHERED"),
        ("direct", FORWARD, "PHASES"),
        ("direct", BACKWARD_WEIGHTS, "PHASES"),
        ("unitwise", BACKWARD_WEIGHTS, "PANELS"),
    ],
)
def test_copies_have_the_type_of_what_they_copy(name: str, direction: str, role: str, kind: StorageType) -> None:
    layer, source = Conv2D(9, 3, 2, padding=1), layers.Input(8, 9, 11)()
    graph = from_nodes(source, layer(source))
    plan = make_plan(graph, 3, loss=MeanSquaredError(), training=True, input_delta=True, tuning=tuning_of(name))
    known = layer.operation(plan.sites[graph.vertices[1].name], direction)
    operation = replace(known, **{side: replace(getattr(known, side), type=kind) for side in ("input", "output")})
    (item, *_) = [item for item in candidates(operation) if item.way.variant == name]
    copy, *rest = item.calls()
    made = {**copy.blobs, **copy.arrays}[role]
    assert made.type == kind
    assert f"#define {role.lower()}_t {kind.c_type}\n" in copy.assemble()
    # Whoever reads the copy knows it as what it is.
    again = [
        one for call in rest for one in (*call.blobs.values(), *call.arrays.values()) if one.storage == made.storage
    ]
    assert again
    assert all(one.type == kind for one in again)


# Cells of processors are of float32.
@pytest.mark.parametrize("storage", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", [name for name, item in IMPLEMENTATIONS.items() if item.lanes or not item.needs_cells])
@pytest.mark.usefixtures("small_tiles")
def test_narrow_blobs(device: Device, name: str, storage: StorageType) -> None:
    """Results are rounded once, gradients of weights not at all."""
    item, reached = IMPLEMENTATIONS[name], set()
    for case in cases(name, 1):
        reached |= phases_of(name, check(device, name, case, storage))
    assert reached == {PHASE_OF[direction] for direction in item.directions}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.usefixtures("small_tiles")
def test_weights_of_halves(device: Device, name: str) -> None:
    """Weights and biases that are halves in memory are these numbers, and nothing is rounded again."""
    item, reached = IMPLEMENTATIONS[name], set()
    for case in cases(name, 1):
        reached |= phases_of(name, check(device, name, case, weights=FLOAT16))
    assert reached == {PHASE_OF[direction] for direction in item.directions}


def phases_of(name: str, report: ContractReport) -> set[str]:
    """In which the implementation was at work."""
    runs = report.runs.values()
    return {phase for run in runs for phase, calls in run.calls.items() if any(is_of(name, call) for call in calls)}


def is_of(name: str, call: KernelCall) -> bool:
    """Whether a call is the implementation's."""
    return call.way is not None and call.way.variant in IMPLEMENTATIONS[name].variants


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_each_has_a_test_of_its_own(name: str) -> None:
    wanted = {name, *IMPLEMENTATIONS[name].variants}
    files = [path for path in ROOT.glob("tests/*/test_*.py") if path.name != Path(__file__).name]
    asked = {word for path in files for only in re.findall(r"only=\{([^}]*)\}", path.read_text(encoding="utf-8"))
             for word in re.findall(r'"(\w+)"', only)}  # fmt: skip
    assert wanted & asked, f"no test asks for only={{{name!r}}}"


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_each_names_kernels_that_there_are(name: str) -> None:
    for kernel in map(IMPLEMENTATIONS[name].kernel_of, IMPLEMENTATIONS[name].directions):
        assert kernel == "generated" or load(kernel)


def test_the_table_of_implementations_is_that_of_the_registry() -> None:
    rows = []
    for name, item in IMPLEMENTATIONS.items():
        known = ", ".join(item.directions)
        where = {None: "all", True: "lanes", False: "loops"}[item.lanes]
        summary = (item.__doc__ or "").partition("\n")[0].rstrip(".")
        families = ", ".join(item.families)
        rows.append(f"| `{name}.py` | {', '.join(item.variants)} | {families} | {known} | {where} | {summary} |")
    text = (ROOT / "docs/implementations.md").read_text(encoding="utf-8")
    found = [line for line in text.splitlines() if line.startswith("| `")]
    assert found == rows, "docs/implementations.md must have these lines:\n" + "\n".join(rows)
