"""What the tests of files share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet.command_line.model_argument import find_model

#: Sides of samples for networks that do not take 64.
SIDES = {"alexnet": 67, "vgg": 32, "inception_v3": 107}

#: Networks that others of their family stand for: they differ in the number of convolutions, and are large.
STOOD_FOR = (
    "densenet161",
    "resnet34",
    "resnet56",
    "resnet101",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
)


def small_network(name: str, classes: int = 10) -> bn.Model:
    """A network of blobnet.models for samples that are smaller than its own."""
    source = find_model(name)
    shape, most = source.defaults()
    if len(shape) == 3 and shape[-1] > 100:
        side = next((side for start, side in SIDES.items() if name.startswith(start)), 64)
        shape = (shape[0], side, side)
    return source.build(shape, min(classes, most), (), 0)


def random_weights(model: bn.Model, seed: int = 0) -> None:
    """Random numbers for all parameters, statistics among them."""
    random = np.random.default_rng(seed)
    positive = ("deviation", "running_variance")
    model.set_weights(
        {
            name: random.uniform(0.5, 1.5, spec.shape)
            if name.endswith(positive)
            else random.normal(0, 1 if len(spec.shape) == 1 else (spec.elements / spec.shape[0]) ** -0.5, spec.shape)
            for name, spec in model.graph.named_parameters.items()
        }
    )


def samples(model: bn.Model, count: int = 3, seed: int = 0) -> dict[str, Any]:
    """Random samples by the names of the inputs; whole numbers where an embedding takes them."""
    random, graph = np.random.default_rng(seed), model.graph
    counts = [vertex.layer.count for vertex in graph.vertices if isinstance(vertex.layer, bn.layers.Embedding)]
    return {
        name: (
            random.integers(0, min(counts), (count, *vertex.shape.dimensions))
            if counts and graph.holds_numbers(vertex)
            else random.normal(0, 1, (count, *vertex.shape.dimensions))
        ).astype(np.float32)
        for name, vertex in graph.inputs.items()
    }


def keras_2(path: Path, layers: Mapping[str, Mapping[str, Any]]) -> Path:
    """A file of Keras 2: the arrays of layers, by name."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([name.encode() for name in layers], "S")
        for name, arrays in layers.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = np.array([f"{name}/{key}:0".encode() for key in arrays], "S32")
            for key, values in arrays.items():
                group[f"{name}/{key}:0"] = values
    return path


@cache
def torchvision() -> Any:
    """torchvision, where it is installed.

    NOTE: PyPI's builds go with PyTorch for CUDA. Beside PyTorch for CPUs alone they have none of their own operators;
    the tests need none.
    """
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("torchvision") is not None and not torch.cuda.is_available():
        try:
            return importlib.import_module("torchvision")
        except RuntimeError:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _OPERATORS.append(operators)  # They go with it.
    return pytest.importorskip("torchvision")


def timm(module: str = "timm") -> Any:
    """A module of timm, where it is installed. It imports torchvision."""
    torchvision()
    return pytest.importorskip(module)


_OPERATORS: list[Any] = []
