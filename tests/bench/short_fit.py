"""What a short ``fit`` pays once, beside its steps: CPU seconds and seconds of the clock, by fits of 1 to 4 steps.

    python tests/bench/short_fit.py resnet18 --shape 3 64 64 --batch-size 32 --device Intel

The first fit of a process is shown by itself; run it twice, so that programs and plans lie in the cache. Of the fits
after it the best of each length counts, and a line through them says what a step takes, and what comes once.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

import blobnet as bn
from blobnet.command_line.model_argument import find_model


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of the process, and seconds of the clock."""
    cpu, clock = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - clock


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", type=int, nargs=3, default=[3, 64, 64])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device")
    options = parser.parse_args()
    warnings.simplefilter("ignore", bn.errors.BlobnetWarning)
    rng, lengths = np.random.default_rng(0), range(1, 5)
    x = rng.standard_normal((options.batch_size * lengths[-1], *options.shape), np.float32)
    y = rng.integers(0, 10, len(x))
    model = find_model(options.model).build(tuple(options.shape), 10, (), 0)

    def fit(steps: int) -> None:
        some = slice(steps * options.batch_size)
        settings = {"batch_size": options.batch_size, "verbose": False, "device": options.device}
        model.fit(x[some], y[some], optimizer=bn.optimizers.SGD(0.01, momentum=0.9), **settings)

    print("first, one step: {:.2f} s of CPU, {:.2f} s".format(*seconds(partial(fit, 1))))
    best = [np.min([seconds(partial(fit, steps)) for _ in range(options.repeats)], axis=0) for steps in lengths]
    for name, found in zip(("s of CPU", "s"), np.transpose(best), strict=True):
        step, once = np.polyfit(lengths, found, 1)
        print(f"a step {step:.3f} {name}, once {once:.3f}; fits of 1 to 4 steps {np.round(found, 3).tolist()}")


if __name__ == "__main__":
    main()
