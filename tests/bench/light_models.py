"""The models that the package onnx ships: time to open one, and one sample, against onnxruntime on the same cores.

    python tests/bench/light_models.py [NAME ...] [--device NAME] [--repeats 20] [--opens 5]

Both in turns, with a pause before each; medians, the shortest in brackets. To open a model is to read its file and to
answer once, in a process of its own that has imported what it needs, with OpenCL's drivers, and nothing else: the
context of the device, or a pool of threads, is part of it. A first such process, not counted, builds the programs.
Imports are told apart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Seconds between two turns: threads of a runtime spin for a while when they have nothing to do.
_PAUSE = 0.05
#: What each imports, of itself or of others, once it is used.
_IMPORTS = {
    "blobnet": ("onnx.checker", "onnx.inliner", "onnx.reference.ops", "blobnet.onnx.importer", "blobnet.onnx.backend"),
    "onnxruntime": ("onnxruntime",),
}


def opened(path: Path, runtime: str, device: str | None) -> tuple[Callable[[], None], dict[str, float]]:
    """What gives one answer, which was given once, and the seconds of imports and of opening."""
    seconds = {}
    start = time.perf_counter()
    for name in _IMPORTS[runtime]:
        importlib.import_module(name)
    if runtime == "blobnet":
        sys.modules["blobnet.device.discovery"].devices()  # Which has the loader open all drivers' libraries.
    seconds["import"] = time.perf_counter() - start
    start = time.perf_counter()
    answer = (_blobnet if runtime == "blobnet" else _onnxruntime)(path, device)
    answer()
    seconds["open"] = time.perf_counter() - start
    return answer, seconds


def _blobnet(path: Path, name: str | None) -> Callable[[], None]:
    import blobnet as bn
    from blobnet.device.device import Device

    device = Device(name)
    model = bn.onnx.load(path)
    x = np.ones((1, *model.graph.input.shape.dimensions), np.float32)
    return lambda: model.predict(x, device=device)


def _onnxruntime(path: Path, name: str | None) -> Callable[[], None]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    x = np.ones((1, *entry.shape[1:]), np.float32)
    return lambda: session.run(None, {entry.name: x})


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--opens", type=int, default=5)
    parser.add_argument("--open", nargs=2, metavar=("FILE", "RUNTIME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        _, found = opened(Path(options.open[0]), options.open[1], options.device)
        print(json.dumps(found))
        return
    import onnx

    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(light.glob("*.onnx")):
        name = path.stem.removeprefix("light_")
        if options.models and name not in options.models:
            continue
        for runtime in _IMPORTS:
            _in_process(path, runtime, options.device)
        spans = [{each: _in_process(path, each, options.device) for each in _IMPORTS} for _ in range(options.opens)]
        for kind in ("import", "open") if options.opens else ():
            print(
                f"{name}: {kind} {told({each: [span[each][kind] for span in spans] for each in _IMPORTS})}", flush=True
            )
        if options.repeats:
            calls = {each: opened(path, each, options.device)[0] for each in _IMPORTS}
            print(f"{name}: one sample {told(in_turns(calls, options.repeats))}", flush=True)


def _in_process(path: Path, runtime: str, device: str | None) -> dict[str, float]:
    """What :func:`opened` takes in a process of its own, which keeps what Python makes of its sources."""
    command = [sys.executable, __file__, "--open", str(path), runtime, *(["--device", device] if device else [])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    time.sleep(_PAUSE)
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=environment, text=True))
    return {kind: 1e3 * seconds for kind, seconds in found.items()}


def in_turns(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call, one behind the other, right behind the same one that is not counted."""
    times: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(repeats):
        for each, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[each].append(1e3 * (time.perf_counter() - start))
            time.sleep(_PAUSE)
    return times


def told(times: dict[str, list[float]]) -> str:
    """Both times, and the ratio of ours to the other."""
    kinds: list[dict[str, Any]] = [
        {each: kind(found) for each, found in times.items()} for kind in (statistics.median, min)
    ]
    parts = [f"{each} {kinds[0][each]:.2f} ({kinds[1][each]:.2f}) ms" for each in times]
    ratios = [found["blobnet"] / found["onnxruntime"] for found in kinds]
    return f"{', '.join(parts)}, ratio {ratios[0]:.2f} ({ratios[1]:.2f})"


if __name__ == "__main__":
    main()
