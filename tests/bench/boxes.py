"""Mean average precision, and seconds an epoch, of CenterNet and of the same network in PyTorch, on scenes of shapes.

Both start from the same weights and see the same samples in the same order, with Adam on a cosine schedule. The targets
of PyTorch are made before the training.

    python tests/bench/boxes.py [--trunk resnet18] [--size 256] [--epochs 5] [--precision fp32] [--device NAME]
        [--torch-device cpu]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch_twin import Twin, set_precision

import blobnet as bn
from blobnet.callbacks import Callback
from blobnet.device.device import Device
from blobnet.examination.reference.losses import box_heat
from blobnet.losses.center_net import boxes_of
from blobnet.metrics import box_map, box_map_50

sys.path.append(str(Path(__file__).parents[2]))
from tests.scenes import scenes


class Clock(Callback):
    """When epochs end."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def epoch_end(self, progress: object) -> None:
        self.times.append(time.perf_counter())


def said(name: str, times: list[float], y: np.ndarray, outputs: np.ndarray) -> None:
    """Prints the median epoch without the first, which builds kernels."""
    taken = float(np.median(np.diff(times)[1:]))
    boxes = boxes_of(outputs)
    print(f"{name}: {taken:.2f} s an epoch, box_map {box_map(y, boxes):.4f}, box_map_50 {box_map_50(y, boxes):.4f}")


def targets(y: np.ndarray, units: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Heat maps, what sizes and offsets should be, and where they count: a part of 1 over the number of boxes."""
    heat = np.zeros((len(y), units - 4, height, width), np.float32)
    wanted, weight = (np.zeros((len(y), count, height, width), np.float32) for count in (4, 1))
    for n, rows in enumerate(y.astype(np.float64)):
        boxes = rows[rows[:, 0] >= 0]
        heat[n] = box_heat(boxes, units - 4, height, width)
        for _, left, top, right, bottom in boxes:
            x, y_ = (left + right) / 2 * width, (top + bottom) / 2 * height
            row, column = min(int(y_), height - 1), min(int(x), width - 1)
            wanted[n, :, row, column] = (right - left) * width, (bottom - top) * height, x - column, y_ - row
            weight[n, 0, row, column] = 1 / len(boxes)
    return torch.tensor(heat), torch.tensor(wanted), torch.tensor(weight)


def loss_of(z: torch.Tensor, heat: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The mean over the samples of CenterNet's loss."""
    logits, p = z[:, :-4], z[:, :-4].sigmoid()
    others = (1 - heat) ** 4 * p**2 * functional.softplus(logits)
    each = torch.where(heat == 1, (1 - p) ** 2 * functional.softplus(-logits), others).sum((1, 2, 3))
    count = weight.gt(0).sum((1, 2, 3)).clamp(min=1)
    distances = (z[:, -4:] - wanted).abs() * weight
    sizes, offsets = (distances[:, part].sum((1, 2, 3)) for part in (slice(0, 2), slice(2, 4)))
    return (each / count + 0.1 * sizes + offsets).mean()


def in_torch(model: bn.Model, x: np.ndarray, y: np.ndarray, test: np.ndarray, options: argparse.Namespace):
    """The times at which epochs end, and the outputs for samples to test with."""
    where = options.torch_device
    network = Twin(model).module.to(where)
    ready = [each.to(where) for each in targets(y, *model.graph.output.shape.dimensions)]
    samples = torch.tensor(x).to(where)
    optimizer, schedule = torch.optim.Adam(network.parameters(), options.rate), bn.schedules.Cosine(options.rate)
    size, times = options.batch_size, [time.perf_counter()]
    steps = -(-len(x) // size)
    network.train()
    for epoch in range(options.epochs):
        order = torch.tensor(np.random.default_rng([0, epoch]).permutation(len(x))).to(where)
        total = 0.0
        for number, rows in enumerate(order.split(size)):
            optimizer.param_groups[0]["lr"] = schedule.value(epoch * steps + number, steps, options.epochs)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(network(samples[rows].float()).float(), *(each[rows] for each in ready))
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        float(total)  # Waits for the device.
        times.append(time.perf_counter())
    network.eval()
    with torch.no_grad():
        outputs = [network(part.float()).float().cpu() for part in torch.tensor(test).to(where).split(size)]
    return times, torch.cat(outputs).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="resnet18")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--scenes", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device")
    parser.add_argument("--torch-device", default="cpu")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs must be at least 2: the first one builds kernels")
    set_precision(options.precision)
    shape = (options.size, options.size)
    (x, y), (test, truth) = scenes(options.scenes, shape), scenes(max(32, options.scenes // 8), shape, seed=1)
    model = bn.models.centernet((3, *shape), 3, trunk=options.trunk)
    model.set_normalization(x.mean(axis=(0, 2, 3)), x.std(axis=(0, 2, 3)))
    times, outputs = in_torch(model, x, y, test, options)
    said("PyTorch", times, truth, outputs)
    clock = Clock()
    optimizer = bn.optimizers.Adam(bn.schedules.Cosine(options.rate))
    model.fit(
        x,
        y,
        epochs=options.epochs,
        batch_size=options.batch_size,
        loss="center-net",
        optimizer=optimizer,
        callbacks=clock,
        device=Device(options.device),
        precision=options.precision,
    )
    found = model.predict(test, batch_size=options.batch_size, precision=options.precision)
    said("blobnet", clock.times, truth, found)


if __name__ == "__main__":
    main()
