"""Who may import whom (docs/design.md), and that no kernel file is dead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from blobnet.implementations import IMPLEMENTATIONS

ROOT = Path(__file__).parents[2]

#: Modules and packages of blobnet, a floor a line: each imports only from floors below, and within its own package.
FLOORS = """
    errors version hardware
    support
    memory
    schedules launch
    device contraction
    implementations
    layers
    losses
    network metrics
    planning
    optimizers files parallel augment
    interop datasets callbacks
    data
    execution
    training examination kernels
    model
    blobnet
    models inspection checkup onnx bench explain
    plots card
    command_line
    __main__
"""
FLOOR_OF = {name: floor for floor, line in enumerate(FLOORS.split("\n")) for name in line.split()}

#: Packages that one floor alone imports, and the modules that may.
ONLY_IN = {
    "pyopencl": {"device"},
    "h5py": {"files", "datasets", "interop"},
    "tensorboardX": {"callbacks"},
    "mlflow": {"callbacks"},
    "wandb": {"callbacks"},
    "optuna": {"callbacks", "command_line"},
    "tqdm": {"training", "command_line"},
    "matplotlib": {"plots"},
    "onnx": {"onnx"},
    "safetensors": {"interop"},
    "huggingface_hub": {"files"},
    "torch": set(),
    "PIL": {"datasets"},
    "mpi4py": {"parallel"},
    "pycocotools": {"metrics"},
    "yaml": {"datasets"},
    "tifffile": {"datasets"},
    "nibabel": {"datasets"},
    "pydicom": {"datasets"},
    "pyarrow": {"datasets"},
    "lmdb": {"datasets"},
}


@cache
def files() -> dict[str, Path]:
    """Every Python file that is installed, by its module's name within blobnet."""
    found = {}
    for folder in ("blobnet", "models", "datasets", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(part for part in parts[folder == "blobnet" :] if part != "__init__")
            found[name or "blobnet"] = path
    return found


def entry(module: str) -> str:
    """The entry of FLOORS that a module belongs to: its own, or its package's."""
    while module not in FLOOR_OF and "." in module:
        module = module.rpartition(".")[0]
    return module


def imported(path: Path) -> Iterator[str]:
    """All modules that a file imports, wherever in it, but not those that only type checkers see."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    for_types = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    unseen = {id(inner) for node in for_types for inner in ast.walk(node)}
    for node in nodes:
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", sorted(files()))
def test_imports_come_from_floors_below(module: str) -> None:
    known = files()
    own = entry(module)
    assert own in FLOOR_OF, f"{module} needs a place in FLOORS"
    for name in imported(known[module]):
        package, _, rest = name.partition(".")
        if package != "blobnet":
            assert own in ONLY_IN.get(package, {own}), f"{package} is imported by {ONLY_IN[package]} alone"
            continue
        while rest and rest not in known:  # from blobnet.network.graph import Graph
            rest = rest.rpartition(".")[0]
        # Whoever imports a part of another package imports its __init__ first.
        outer = rest.partition(".")[0]
        loaded = {rest or "blobnet"} | ({outer} if outer and outer != module.partition(".")[0] else set())
        for other in map(entry, loaded):
            assert other == own or FLOOR_OF[other] < FLOOR_OF[own], f"{module} must not import {name}"


def test_no_module_imports_itself_through_others() -> None:
    known = files()
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        graph[module] = set()
        for name in imported(path):
            rest = name.partition(".")[2]
            while rest and rest not in known:
                rest = rest.rpartition(".")[0]
            graph[module] |= {rest} - {module, ""}
    TopologicalSorter(graph).prepare()  # CycleError names the modules.


def test_floors_name_what_there_is() -> None:
    assert set(FLOOR_OF) == {entry(module) for module in files()}


def test_every_kernel_is_used_and_every_family_has_one() -> None:
    strings = {
        node.value
        for path in files().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    strings |= {item.kernel_of(direction) for item in IMPLEMENTATIONS.values() for direction in item.directions}
    folder = ROOT / "kernels"
    kernels = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.cl")}
    assert kernels <= strings, f"dead kernels: {sorted(kernels - strings)}"
    families = {path.parent.name for path in folder.glob("[!_]*/*")}
    assert families == {name.partition("/")[0] for name in kernels}
    named = {text for text in strings if re.fullmatch(rf"({'|'.join(families)})/[a-z_]+", text)}
    assert named == kernels


def test_every_header_is_included() -> None:
    folder = ROOT / "kernels"
    sources = [path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.suffix in (".cl", ".h")]
    included = set(re.findall(r'#include "([^"]+)"', "\n".join(sources)))
    assert included == {path.relative_to(folder).as_posix() for path in folder.rglob("*.h")}
