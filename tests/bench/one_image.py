"""One image through a network on a CPU: blobnet's ``predict`` against onnxruntime on as many threads, in turns.

    python tests/bench/one_image.py mobilenet_v2 --device Intel

Needs torch (which writes the network for onnxruntime) and onnxruntime. Prints the median of all turns, and their
shortest; other work on the machine lengthens the one more than the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch_twin

from blobnet import models
from blobnet.device.device import Device
from blobnet.model import Model

#: Seconds between two turns: threads of a runtime spin for a while when they have nothing to do.
_PAUSE = 0.05


def onnx_session(model: Model, threads: int) -> Any:
    """A network in onnxruntime, through PyTorch."""
    import onnxruntime
    import torch
    from torch.onnx._internal.torchscript_exporter import onnx_proto_utils

    # NOTE: it looks for functions of other packages in the file, for which it needs the package onnx; there are none.
    onnx_proto_utils._add_onnxscript_fn = lambda model_bytes, _: model_bytes
    example = torch.zeros(1, *model.graph.input.shape.dimensions)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(torch_twin.Twin(model).module.eval(), (example,), str(path), dynamo=False, input_names=["x"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="the name of a network that ships")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="fp32", help="blobnet's; onnxruntime keeps float32")
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    model = getattr(models, options.model)((3, 224, 224), 1000)
    device = Device(options.device)
    session = onnx_session(model, len(os.sched_getaffinity(0)))
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "blobnet": lambda: model.predict(x, device=device, precision=options.precision),
        "onnxruntime": lambda: session.run(None, {"x": x})[0],
    }
    answers = [call() for call in calls.values()]
    error = 1e-3 if options.precision == "fp32" else 0.1  # of the largest answer: half types round every blob
    np.testing.assert_allclose(*answers, rtol=0, atol=error * float(np.abs(answers[1]).max()))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
            time.sleep(_PAUSE)
    for name, each in times.items():
        print(f"{name}: {statistics.median(each):.2f} ms, at least {min(each):.2f}")
    for what, of in (("medians", statistics.median), ("the shortest", min)):
        print(f"ratio of {what}: {of(times['blobnet']) / of(times['onnxruntime']):.2f}")


if __name__ == "__main__":
    main()
