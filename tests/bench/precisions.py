"""Accuracy by precision: networks trained on Fashion-MNIST in each, with several seeds, and what they lose to fp32.

    python tests/bench/precisions.py [--networks lenet5 resnet20] [--precisions fp32 bf16 fp16]
        [--seeds 5] [--epochs 10] [--device NVIDIA]

A line for each training: its accuracy on the test samples, predicted in the same precision. At the end the means.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import blobnet as bn
from blobnet import models


def accuracy(network: str, precision: str, seed: int, options: argparse.Namespace, data: Any) -> float:
    """Train one network, and measure it."""
    model = getattr(models, network)(input_shape=(1, 28, 28), classes=10, seed=seed)
    model.set_normalization(*data.statistics())
    settings: dict[str, Any] = {"device": options.device, "precision": precision, "batch_size": 128}
    rate = bn.schedules.Cosine(2e-3)
    model.fit(
        data.train.x, data.train.y, epochs=options.epochs, optimizer=bn.optimizers.Adam(rate), seed=seed,
        verbose=False, **settings,
    )  # fmt: skip
    found = float(model.evaluate(data.test.x, data.test.y, **settings)["accuracy"])
    state = model.training_state
    scale = state.optimizer_state.get("loss_scale") if state is not None else None
    told = "" if scale is None else f", loss scale {scale[0]:g}"
    print(f"{network} {precision} seed {seed}: {found:.4f}{told}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["lenet5", "resnet20"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16", "fp16"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device")
    options = parser.parse_args()
    data = bn.datasets.load("fashion-mnist")
    for network in options.networks:
        means = {
            precision: statistics.mean(
                accuracy(network, precision, seed, options, data) for seed in range(options.seeds)
            )
            for precision in options.precisions
        }
        first = means[options.precisions[0]]
        for precision, mean in means.items():
            print(f"{network} {precision}: mean of {options.seeds} {mean:.4f}, {100 * (mean - first):+.2f} points")


if __name__ == "__main__":
    main()
