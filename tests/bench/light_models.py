"""The models that the package onnx ships: time to load one, and one sample, against onnxruntime on the same cores.

    python tests/bench/light_models.py [NAME ...] [--device NAME] [--repeats 20]

Both in turns, with a pause before each; medians, the shortest in brackets. A load ends with the first answer.
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

        first = seconds(load)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: opened["x"]}
        calls = {
            "blobnet": lambda opened=opened: opened["model"].predict(opened["x"], device=device),
            "onnxruntime": lambda session=session, feed=feed: session.run(None, feed),
        }
        times: dict[str, list[float]] = {each: [] for each in calls}
        for _ in range(options.repeats):
            for each, call in calls.items():
                call()
                times[each].append(1e3 * seconds(call))
                time.sleep(_PAUSE)
        middle = {each: statistics.median(found) for each, found in times.items()}
        least = {each: min(found) for each, found in times.items()}
        told = ", ".join(f"{each} {middle[each]:.2f} ({least[each]:.2f}) ms" for each in calls)
        ratios = [found["blobnet"] / found["onnxruntime"] for found in (middle, least)]
        print(f"{name}: load {first:.2f} s; {told}; ratio {ratios[0]:.2f} ({ratios[1]:.2f})", flush=True)


if __name__ == "__main__":
    main()
