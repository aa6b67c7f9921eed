"""The published networks written again in PyTorch, from the papers' tables: what blobnet.models is compared with.

They share no code with blobnet. Where a network has dense layers behind planes, ``features`` says how many values come.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from blobnet.network.graph import Graph


def norm_convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """A branch plus the input or, where that does not fit, plus its 1x1 convolution."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        fits = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if fits else norm_convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet(channels: int, classes: int, blocks: tuple[int, ...], *, bottleneck: bool) -> nn.Sequential:
    parts: list[nn.Module] = [norm_convolution(channels, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, number in enumerate(blocks):
        width = 64 << stage
        for block in range(number):
            stride = 2 if stage and not block else 1
            if bottleneck:
                outputs = 4 * width
                chain = [norm_convolution(inputs, width, 1), nn.ReLU(), norm_convolution(width, width, 3, stride)]
                chain += [nn.ReLU(), norm_convolution(width, outputs, 1)]
            else:
                outputs = width
                chain = [norm_convolution(inputs, width, 3, stride), nn.ReLU(), norm_convolution(width, width, 3)]
            parts.append(Residual(nn.Sequential(*chain), inputs, outputs, stride))
            inputs = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet18(channels: int, classes: int, features: int = 0) -> nn.Module:
    return resnet(channels, classes, (2, 2, 2, 2), bottleneck=False)


def resnet50(channels: int, classes: int, features: int = 0) -> nn.Module:
    return resnet(channels, classes, (3, 4, 6, 3), bottleneck=True)


def vgg16(channels: int, classes: int, features: int) -> nn.Module:
    parts: list[nn.Module] = []
    for entry in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if entry:
            parts += [nn.Conv2d(channels, entry, 3, padding=1), nn.ReLU()]
            channels = entry
        else:
            parts.append(nn.MaxPool2d(2, 2))
    parts += [nn.Flatten(), nn.Linear(features, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*parts, nn.Dropout(), nn.Linear(4096, classes))


def alexnet(channels: int, classes: int, features: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten()),
        *(nn.Dropout(), nn.Linear(features, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, classes),
    )


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        chain = [norm_convolution(inputs, wide, 1), nn.ReLU6()] if expansion > 1 else []
        chain += [norm_convolution(wide, wide, 3, stride, wide), nn.ReLU6(), norm_convolution(wide, outputs, 1)]
        self.branch = nn.Sequential(*chain)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x) if self.adds else self.branch(x)


def mobilenet_v2(channels: int, classes: int, features: int = 0) -> nn.Module:
    parts: list[nn.Module] = [norm_convolution(channels, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    table = "1 16 1 1, 6 24 2 2, 6 32 3 2, 6 64 4 2, 6 96 3 1, 6 160 3 2, 6 320 1 1"  # t c n s
    for row in table.split(","):
        expansion, outputs, blocks, stride = map(int, row.split())
        for block in range(blocks):
            parts.append(Inverted(inputs, outputs, 1 if block else stride, expansion))
            inputs = outputs
    parts += [norm_convolution(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*parts, nn.Linear(1280, classes))


def copy_weights(graph: Graph, weights: dict[str, np.ndarray], network: nn.Module, x: torch.Tensor) -> None:
    """Gives ``network`` the weights of a blobnet graph: both use their layers in the same order."""
    used: dict[nn.Module, None] = {}
    leaves = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    hooks = [part.register_forward_hook(lambda part, *_: used.update({part: None})) for part in leaves]
    with torch.no_grad():
        network.eval()(x)
    for hook in hooks:
        hook.remove()
    layers = [vertex for vertex in graph.vertices if graph.parameters(vertex) and vertex.inputs]
    assert len(layers) == len(used)
    names = {"scale": "weight", "shift": "bias", "running_variance": "running_var"}
    for vertex, part in zip(layers, used, strict=True):
        own = {name: values for name, values in part.state_dict().items() if name != "num_batches_tracked"}
        assert len(own) == len(graph.parameters(vertex)), vertex.name
        for spec in graph.parameters(vertex):
            target = own[names.get(spec.name, spec.name)]
            assert tuple(target.shape) == spec.shape, (vertex.name, spec.name)
            target.copy_(torch.tensor(weights[f"{vertex.name}/{spec.name}"]))
