"""What ``blobnet speedrun`` trains, in PyTorch: the same network, first weights, order, optimizer and views.

blobnet speedrun --against torch
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from blobnet.command_line import speedrun
from blobnet.device.discovery import DeviceInfo
from blobnet.training.weight_buffers import average_rate
from tests.bench import torch_twin


class Muon(torch.optim.Optimizer):
    """blobnet's: momentum whose singular values are about 1, of filters; PyTorch's AdamW for what is none."""

    def __init__(self, filters: list[Any], others: list[Any], own: Any) -> None:
        super().__init__(filters, {"lr": 0.0})
        self.own = own
        self.adam = torch.optim.AdamW(others, betas=(own.beta1, own.beta2), eps=own.epsilon, weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        own, rate = self.own, self.param_groups[0]["lr"]
        for values in self.param_groups[0]["params"]:
            momentum = self.state[values].setdefault("momentum", torch.zeros_like(values))
            momentum.lerp_(values.grad, 1 - own.momentum)
            x = values.grad.lerp(momentum, own.momentum).flatten(1)
            x = x / (x.norm() + 1e-7)
            rows, columns = x.shape
            x = x.T if rows > columns else x
            for _ in range(own.iterations):
                square = x @ x.T
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            x = x.T if rows > columns else x
            values.mul_(1 - rate * own.weight_decay)
            values.sub_(rate * math.sqrt(max(1, rows / columns)) * x.reshape(values.shape))
        for group in self.adam.param_groups:
            group["lr"] = own.adam_factor * rate
            group["weight_decay"] = own.weight_decay if group.get("decays") else 0.0
        self.adam.step()


def changed(x: Any, mean: Any, mirrored: Any, random: torch.Generator, shift: int) -> Any:
    """Pictures, mirrored where it is said, moved by up to ``shift`` cells; the mean comes from outside."""
    count, _, height, width = x.shape
    x = torch.where(mirrored[:, None, None, None], x.flip(-1), x) - mean
    edged = functional.pad(x, (shift,) * 4)
    top, left = torch.randint(0, 2 * shift + 1, (2, count), generator=random).to(x.device)
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = left[:, None] + torch.arange(width, device=x.device)
    samples = torch.arange(count, device=x.device)[:, None, None]
    return edged.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2) + mean


def trained_by(info: DeviceInfo, precision: str) -> speedrun.Train:
    """Return the training on the same device."""
    where = torch_twin.device_for(info)
    torch_twin.set_precision(precision)

    def train(model: Any, data: Any, epochs: int, seed: int) -> Any:
        size = speedrun.BATCH_SIZE
        network = torch_twin.Twin(model).module.to(where).train()
        frozen, table = speedrun.frozen_names(model), model.graph.named_parameters
        named = {**dict(network.named_parameters())}
        names = {f"parts.{name.replace('/', '.')}": name for name in table}
        names |= {key.removesuffix("scale") + "weight": name for key, name in names.items() if key.endswith("scale")}
        names |= {key.removesuffix("shift") + "bias": name for key, name in names.items() if key.endswith("shift")}
        filters, decayed, plain = [], [], []
        for key, values in named.items():
            name = names[key]
            values.requires_grad_(name not in frozen and table[name].trainable)
            if values.requires_grad:
                (filters if values.ndim > 2 else decayed if table[name].decayed else plain).append(values)
        optimizer = Muon(filters, [{"params": decayed, "decays": True}, {"params": plain}], speedrun.OPTIMIZER)
        average = torch.optim.swa_utils.AveragedModel(network, use_buffers=True)
        x, y = torch.tensor(np.asarray(data.train.x)).to(where), torch.tensor(data.train.y, dtype=torch.int64).to(where)
        random = torch.Generator().manual_seed(seed)
        turned = (torch.rand(len(x), generator=random) < 0.5).to(where)
        mean = torch.tensor(model.weights["input/mean"], device=where).reshape(1, -1, 1, 1)
        steps, number = -(-len(x) // size), 0
        for epoch in range(epochs):
            order = torch.tensor(np.random.default_rng([seed, epoch]).permutation(len(x)), device=where)
            for chosen in order.split(size):
                own = changed(x[chosen].float(), mean, turned[chosen] ^ bool(epoch % 2), random, speedrun.SHIFT)
                optimizer.param_groups[0]["lr"] = speedrun.RATE.value(number, steps, epochs)
                network.zero_grad(set_to_none=True)
                loss = functional.cross_entropy(network(own), y[chosen], label_smoothing=speedrun.SMOOTHING)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    rate = average_rate(number, speedrun.AVERAGE)
                    for kept, now in zip(average.module.parameters(), network.parameters(), strict=True):
                        kept.lerp_(now, rate)
                    for kept, now in zip(average.module.buffers(), network.buffers(), strict=True):
                        kept.copy_(now)
                number += 1
        measured = average.module.eval()

        def predict(pictures: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
            with torch.no_grad():
                parts = torch.tensor(pictures).to(where).float().split(2000)
                return torch.cat([measured(part) for part in parts]).float().cpu().numpy()

        return predict

    return train
