"""The models that the package onnx ships: time to load one, and one sample, against onnxruntime on the same cores.

    python tests/bench/light_models.py [NAME ...] [--device NAME] [--repeats 20]

Both in turns, with a pause before each; medians, the shortest in brackets. A load ends with the first answer; each
comes right behind another one, which has built the programs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import blobnet as bn
from blobnet.device import Device

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
#: Seconds between two turns: threads of a runtime spin for a while when they have nothing to do.
_PAUSE = 0.05
#: How many loads are timed.
_LOADS = 3


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    device = Device(options.device)
    for path in sorted(LIGHT.glob("*.onnx")):
        name = path.stem.removeprefix("light_")
        if options.models and name not in options.models:
            continue
        opened: dict[str, Any] = {}

        def load(path: Path = path, opened: dict[str, Any] = opened) -> None:
            opened["model"] = model = bn.onnx.load(path)
            opened["x"] = np.ones((1, *model.graph.input.shape.dimensions), np.float32)
            model.predict(opened["x"], device=device)

        def load_theirs(path: Path = path, opened: dict[str, Any] = opened) -> None:
            opened["session"] = session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            opened["feed"] = {session.get_inputs()[0].name: opened["x"]}
            session.run(None, opened["feed"])

        def answer(opened: dict[str, Any] = opened) -> None:
            opened["model"].predict(opened["x"], device=device)

        def answer_theirs(opened: dict[str, Any] = opened) -> None:
            opened["session"].run(None, opened["feed"])

        loads = in_turns({"blobnet": load, "onnxruntime": load_theirs}, _LOADS)
        answers = in_turns({"blobnet": answer, "onnxruntime": answer_theirs}, options.repeats)
        print(f"{name}: load {told(loads)}; one sample {told(answers)}", flush=True)


def in_turns(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call, one behind the other, right behind the same one that is not counted."""
    times: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(repeats):
        for each, call in calls.items():
            call()
            times[each].append(1e3 * seconds(call))
            time.sleep(_PAUSE)
    return times


def told(times: dict[str, list[float]]) -> str:
    """Both times, and the ratio of ours to the other."""
    kinds = [{each: kind(found) for each, found in times.items()} for kind in (statistics.median, min)]
    parts = [f"{each} {kinds[0][each]:.2f} ({kinds[1][each]:.2f}) ms" for each in times]
    ratios = [found["blobnet"] / found["onnxruntime"] for found in kinds]
    return f"{', '.join(parts)}, ratio {ratios[0]:.2f} ({ratios[1]:.2f})"


if __name__ == "__main__":
    main()
