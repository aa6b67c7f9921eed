"""Everything below the device floor runs where there is no OpenCL, and so do the tests of this folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import blobnet

PACKAGE = Path(blobnet.__file__).parent
FLOORS = [
    "errors",
    "memory.blob",
    "memory.windows",
    "launch.kernel_source",
    "launch.kernel_call",
    "layers",
    "network.graph",
    "losses",
    "planning",
]

#: Imports the floors without what ``import blobnet`` imports besides, and plans a small model.
CODE = """
import sys, types
for name in ("pyopencl", "h5py", "tqdm"):
    sys.modules[name] = None  # Importing it is an error.
package = sys.modules["blobnet"] = types.ModuleType("blobnet")
package.__path__ = [sys.argv[1]]
for floor in sys.argv[2:]:
    __import__("blobnet." + floor)
from blobnet import layers, losses, planning
from blobnet.network import graph
model = graph.sequential([layers.Input(2, 3, 4), layers.Activation("relu"), layers.Flatten()])
plan = planning.make_plan(model, 8, loss=losses.CrossEntropy(), training=True, input_delta=True)
assert plan.bytes() > 0
for _, call in plan.calls:
    call.assemble()
"""


def test_floors_below_device_need_no_pyopencl() -> None:
    layers = [f"layers.{path.stem}" for path in sorted((PACKAGE / "layers").glob("[!_]*.py"))]
    result = subprocess.run(
        [sys.executable, "-c", CODE, str(PACKAGE), *FLOORS, *layers], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_tests_of_this_folder_need_no_device() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] + [f"{node.module}.{item.name}" for item in node.names]
            elif isinstance(node, ast.Import):
                names = [item.name for item in node.names]
            elif isinstance(node, ast.arg):
                names = ["blobnet.device.device"] if node.arg == "device" else []
            else:
                continue
            assert not {"pyopencl", "blobnet.device.device", "blobnet.execution.executor"} & set(names), (
                f"{path.name}:{node.lineno}"
            )
