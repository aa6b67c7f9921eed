"""Test accuracy of a shipped model, and of the same network in PyTorch.

Both start from the same weights and see the same samples in the same order, with Adam(1e-3) on a cosine schedule; only
the random numbers of dropout differ.

    python tests/bench/accuracy.py MODEL [--epochs 5] [--device NAME] [--torch-device cpu] [--only blobnet|torch]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch_twin import Twin

import blobnet as bn
from blobnet import models
from blobnet.device.device import Device

BATCH_SIZE = 128


def train_blobnet(model: bn.Model, data: bn.datasets.Dataset, epochs: int, device: Device, seed: int) -> float:
    """Test accuracy after training in blobnet."""
    model.fit(
        data.train.x,
        data.train.y,
        epochs=epochs,
        batch_size=BATCH_SIZE,
        optimizer=bn.optimizers.Adam(bn.schedules.Cosine(1e-3)),
        validation=(data.test.x, data.test.y),
        seed=seed,
        device=device,
    )
    return model.evaluate(data.test.x, data.test.y)["accuracy"]


def train_torch(model: bn.Model, data: bn.datasets.Dataset, epochs: int, where: str, seed: int) -> float:
    """Test accuracy after the same training in PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(seed)
    network = Twin(model).module.to(where)
    schedule = bn.schedules.Cosine(1e-3)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    x = torch.tensor(data.train.x.astype(np.float32)).to(where)
    y = torch.tensor(data.train.y).to(where)
    steps = -(-len(x) // BATCH_SIZE)
    for epoch in range(epochs):
        network.train()
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        for number in range(steps):
            chosen = torch.tensor(order[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]).to(where)
            optimizer.param_groups[0]["lr"] = schedule.value(epoch * steps + number, steps, epochs)
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(x[chosen]), y[chosen]).backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        images = torch.tensor(data.test.x.astype(np.float32)).to(where)
        logits = torch.cat([network(part) for part in images.split(1000)])
    return float((logits.argmax(1).cpu().numpy() == data.test.y).mean())


def main() -> None:
    """Prints both accuracies for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--device")
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--only", choices=["blobnet", "torch"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    data = bn.datasets.load(options.dataset)
    assert data.test is not None
    device = Device(options.device) if options.only != "torch" else None
    build = getattr(models, options.model)
    for seed in options.seeds:
        model = build(data.shape, data.classes, seed=seed)
        model.set_normalization(*data.statistics())
        start = model.weights
        if options.only != "blobnet":
            began = time.perf_counter()
            accuracy = train_torch(model, data, options.epochs, options.torch_device, seed)
            taken = time.perf_counter() - began
            print(
                f"{options.model} seed {seed}: PyTorch {accuracy:.4f} ({options.torch_device}, {taken:.0f} s)",
                flush=True,
            )
        if device is not None:
            model.set_weights(start)
            began = time.perf_counter()
            accuracy = train_blobnet(model, data, options.epochs, device, seed)
            taken = time.perf_counter() - began
            print(
                f"{options.model} seed {seed}: blobnet {accuracy:.4f} ({device.info.name}, {taken:.0f} s)", flush=True
            )


if __name__ == "__main__":
    main()
