"""The network of the fastest published training on small pictures (Jordan, *94% on CIFAR-10 in 3.29 seconds*, 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import blobnet as bn
from blobnet import layers
from blobnet.memory.blob import FloatArray

#: Cells along each axis of the first filters.
_PATCH = 2
#: What is added to the variances by which patches are divided.
_EPSILON = 5e-4
#: What the recipe leaves as it is: the first filters, and the scales of norms.
FROZEN = ("whiten/weight", "*_norm?/scale")


def airbench(
    input_shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    class_names: Sequence[str] = (),
    seed: int = 0,
    *,
    widths: Sequence[int] = (64, 256, 256),
    activation: str = "gelu",
) -> bn.Model:
    """A 2x2 convolution, three groups of two 3x3 convolutions with norms, a pool over what is left, a dense layer.

    As in ``airbench94`` the 3x3 convolutions begin with filters that pass their inputs on, and :func:`whiten` gives the
    first one its filters; the scale of its logits, 1 / units, is left to the learning rate. ``blobnet speedrun`` trains
    it. Samples must have at least 9 rows and columns.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
        widths: units of the three groups.
        activation: behind each convolution.
    """
    images = layers.Input(*input_shape, name="input")()
    filters = 2 * input_shape[0] * _PATCH**2
    node = layers.Conv2D(filters, _PATCH, activation=activation, name="whiten")(images)
    for number, units in enumerate(widths, start=1):
        for place in (1, 2):
            name = f"group{number}"
            node = layers.Conv2D(units, 3, padding=1, bias=False, name=f"{name}_conv{place}")(node)
            if place == 1:
                node = layers.MaxPool2D(2, name=f"{name}_pool")(node)
            node = layers.BatchNorm(0.4, 1e-12, name=f"{name}_norm{place}")(node)
            node = layers.Activation(activation, name=f"{name}_{activation}{place}")(node)
    node = layers.MaxPool2D((node.shape.height, node.shape.width), name="pool")(node)
    logits = layers.Dense(classes, bias=False, name="logits")(layers.Flatten(name="flatten")(node))
    model = bn.Model(images, logits, class_names=class_names, seed=seed)
    weights = model.weights
    model.set_weights({name: _passing_on(weights[name]) for name in weights if name.partition("_conv")[1]})
    return model


def whiten(model: bn.Model, x: npt.ArrayLike) -> None:
    """Sets the first filters of :func:`airbench`: they take the correlations out of patches of pictures.

    Half of them are the eigenvectors of the patches' second moments, each divided by the root of its value; the others
    are their negatives. The bias becomes 0.

    Args:
        model: with its normalisation set.
        x: pictures, (N, units, height, width); some thousands are enough.
    """
    weights = model.weights
    mean, deviation = (weights[f"input/{name}"].reshape(-1, 1, 1) for name in ("mean", "deviation"))
    pictures = (np.asarray(x, np.float64) - mean) / deviation
    patches = np.lib.stride_tricks.sliding_window_view(pictures, (_PATCH, _PATCH), axis=(2, 3))
    rows = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, math.prod(weights["whiten/weight"].shape[1:]))
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    filters = (vectors / np.sqrt(values + _EPSILON)).T.reshape(-1, *weights["whiten/weight"].shape[1:])
    found = np.concatenate([filters, -filters])
    model.set_weights({"whiten/weight": found, "whiten/bias": np.zeros(len(found))})


def _passing_on(weight: FloatArray) -> FloatArray:
    """Filters of which the first ones give an input each as it is."""
    count = min(weight.shape[:2])
    weight[:count] = 0
    weight[range(count), range(count), 1, 1] = 1
    return weight
