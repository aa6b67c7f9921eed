"""The shipped models in PyTorch, with the same names, so that weights can be carried over (a development oracle)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

import blobnet as bn


class TorchGraph(nn.Module):
    """A blobnet graph as a PyTorch module that runs the same vertices in the same order."""

    def __init__(self, model: bn.Model) -> None:
        super().__init__()
        self.graph = model.graph
        self.parts = nn.ModuleDict()
        for vertex in model.graph.vertices:
            part = _part(vertex.layer, [shape.units for shape in model.graph.input_shapes(vertex)], model.graph, vertex)
            if part is not None:
                self.parts[vertex.name] = part
        self.load(model.weights)

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copies a model's weights into this module."""
        for name, values in weights.items():
            layer, _, parameter = name.partition("/")
            if layer == self.graph.input.name:
                self.register_buffer(parameter, torch.tensor(values).reshape(1, -1, 1, 1))
                continue
            names = {"scale": "weight", "shift": "bias", "running_variance": "running_var"}
            with torch.no_grad():
                getattr(self.parts[layer], names.get(parameter, parameter)).copy_(torch.tensor(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of raw samples."""
        values: list[torch.Tensor] = []
        for vertex in self.graph.vertices:
            inputs = [values[source] for source in vertex.inputs]
            if not inputs:
                values.append((x - self.mean) / self.deviation)
            elif vertex.layer.kind == "Add":
                values.append(inputs[0] + inputs[1])
            else:
                values.append(self.parts[vertex.name](inputs[0]))
        return values[-1]


def _part(layer: bn.layers.Layer, units: list[int], graph: object, vertex: object) -> nn.Module | None:
    if layer.kind == "Conv2D":
        shape = graph.input_shapes(vertex)[0]
        vertical, horizontal = layer._axes(shape)
        assert vertical.padding == (vertical.padding[0],) * 2, "asymmetric padding is not needed by the shipped models"
        kernel, stride = (vertical.kernel, horizontal.kernel), (vertical.stride, horizontal.stride)
        padding = (vertical.padding[0], horizontal.padding[0])
        return nn.Conv2d(units[0], layer.filters, kernel, stride, padding, bias=bool(layer.bias))
    if layer.kind == "Dense":
        return nn.Linear(graph.input_shapes(vertex)[0].elements, layer.units)
    makers = {
        "BatchNorm": lambda: nn.BatchNorm2d(units[0]),
        "Activation": nn.ReLU,
        "MaxPool2D": lambda: nn.MaxPool2d(layer.pool_size),
        "GlobalAveragePool": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "Flatten": nn.Flatten,
        "Dropout": lambda: nn.Dropout(layer.rate),
    }
    return makers[layer.kind]() if layer.kind in makers else None
