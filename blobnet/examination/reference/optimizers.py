"""Optimizers, gradient clipping and learning rate schedules, in PyTorch's definitions.

A step takes a flat parameter vector w, its gradient g and a state (at first ``{}``), and returns the new vector and the
new state; it changes neither. ``weight_decay`` is a number, or a vector with a 0 for what does not decay. Steps that
know what is one parameter take ``places``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64

State = dict[str, FloatArray]
Decay = float | FloatArray
#: Where each parameter begins, and its shape.
Places = Sequence[tuple[int, tuple[int, ...]]]


def sgd(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: Decay = 0.0,
) -> tuple[FloatArray, State]:
    """Gradients with momentum.

    g += weight_decay * w;  v = momentum * v + g;  w -= learning_rate * (g + momentum * v if nesterov else v).
    Sutskever et al. 2013; v ("velocity") is the sum of gradients, so the learning rate is outside of it.
    """
    parameters = float64(parameters)
    gradient = float64(gradient) + weight_decay * parameters
    velocity = momentum * _value(state, "velocity", parameters) + gradient
    step = gradient + momentum * velocity if nesterov else velocity
    return parameters - learning_rate * step, {"velocity": velocity}


def rmsprop(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    learning_rate: float,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
    weight_decay: Decay = 0.0,
) -> tuple[FloatArray, State]:
    """Gradients over their root mean square (Hinton 2012, lecture 6e).

    g += weight_decay * w;  s = alpha * s + (1 - alpha) * g^2;  v = momentum * v + g / (sqrt(s) + epsilon);
    w -= learning_rate * v
    """
    parameters = float64(parameters)
    gradient = float64(gradient) + weight_decay * parameters
    square = alpha * _value(state, "square", parameters) + (1.0 - alpha) * gradient**2
    velocity = momentum * _value(state, "velocity", parameters) + gradient / (np.sqrt(square) + epsilon)
    return parameters - learning_rate * velocity, {"square": square, "velocity": velocity}


def adam(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: Decay = 0.0,
) -> tuple[FloatArray, State]:
    """Means of gradients over the root of those of their squares (Kingma and Ba 2014, algorithm 1).

    g += weight_decay * w, then at step t = 1, 2, ...
    m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
    w -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
    """
    parameters = float64(parameters)
    gradient = float64(gradient) + weight_decay * parameters
    time = float(state["time"][0]) + 1.0 if "time" in state else 1.0
    mean = beta1 * _value(state, "mean", parameters) + (1.0 - beta1) * gradient
    square = beta2 * _value(state, "square", parameters) + (1.0 - beta2) * gradient**2
    corrected_mean = mean / (1.0 - beta1**time)
    corrected_square = square / (1.0 - beta2**time)
    updated = parameters - learning_rate * corrected_mean / (np.sqrt(corrected_square) + epsilon)
    return updated, {"mean": mean, "square": square, "time": np.array([time])}


def adamw(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: Decay = 0.01,
) -> tuple[FloatArray, State]:
    """Adam without decay, after w *= 1 - learning_rate * weight_decay (Loshchilov and Hutter 2017)."""
    decayed = float64(parameters) * (1.0 - learning_rate * np.asarray(weight_decay))
    return adam(decayed, gradient, state, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)


def lion(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: Decay = 0.0,
) -> tuple[FloatArray, State]:
    """Signs of running means, after w *= 1 - learning_rate * weight_decay (Chen et al. 2023, algorithm 2)."""
    gradient, mean = float64(gradient), _value(state, "mean", parameters)
    decayed = float64(parameters) * (1.0 - learning_rate * np.asarray(weight_decay))
    along = beta1 * mean + (1.0 - beta1) * gradient
    return decayed - learning_rate * np.sign(along), {"mean": beta2 * mean + (1.0 - beta2) * gradient}


def lamb(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    places: Places,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    always_adapts: bool = False,
    weight_decay: Decay = 0.01,
) -> tuple[FloatArray, State]:
    """Adam's step (decay added) times |w| / |step| of each parameter that decays (You et al. 2020, algorithm 2)."""
    parameters, still = float64(parameters), np.zeros_like(parameters)
    options: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    step, state = adam(still, gradient, state, learning_rate=1.0, **options)
    step = weight_decay * parameters - step
    ratios, decays = np.ones_like(parameters), np.broadcast_to(weight_decay, parameters.shape)
    for begin, shape in places:
        own = slice(begin, begin + math.prod(shape))
        norms = np.linalg.norm(parameters[own]), np.linalg.norm(step[own])
        if (always_adapts or decays[begin] > 0) and min(norms) > 0:
            ratios[own] = norms[0] / norms[1]
    return parameters - learning_rate * ratios * step, state


def muon(  # noqa: PLR0913
    parameters: FloatArray,
    gradient: FloatArray,
    state: State,
    *,
    places: Places,
    learning_rate: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    iterations: int = 5,
    adam_factor: float = 0.015,
    beta1: float = 0.9,
    beta2: float = 0.95,
    epsilon: float = 1e-10,
    weight_decay: Decay = 0.0,
    matrices: Collection[str] = (),
) -> tuple[FloatArray, State]:
    """Orthogonal momentum of filters, three dimensions and more, and AdamW of the rest (Jordan et al. 2024)."""
    assert not matrices, "parameters have no names here"
    parameters, gradient = float64(parameters), float64(gradient)
    options: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
    rates = np.broadcast_to(learning_rate, parameters.shape)
    plain = {name: values for name, values in state.items() if name != "momentum"}
    moved, plain = adamw(parameters, gradient, plain, learning_rate=adam_factor * rates, **options)  # type: ignore[arg-type]
    mean = momentum * _value(state, "momentum", parameters) + (1.0 - momentum) * gradient
    along = (1.0 - momentum) * gradient + momentum * mean if nesterov else mean
    for begin, shape in places:
        if len(shape) > 2:
            own = slice(begin, begin + math.prod(shape))
            matrix = along[own].reshape(shape[0], -1)
            step = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5 * orthogonal(matrix, iterations)
            kept = parameters[own] * (1.0 - rates[own] * np.broadcast_to(weight_decay, parameters.shape)[own])
            moved[own] = kept - rates[own] * step.ravel()
    return moved, {**plain, "momentum": mean}


def orthogonal(matrix: FloatArray, iterations: int) -> FloatArray:
    """Newton and Schulz: the matrix with singular values of about 1."""
    x: FloatArray = matrix / (np.linalg.norm(matrix) + 1e-7)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(iterations):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def clip_by_value(gradient: FloatArray, most: float) -> FloatArray:
    """Each gradient within -most and most."""
    return np.clip(float64(gradient), -most, most)


def lookahead(slow: FloatArray, parameters: FloatArray, part: float) -> FloatArray:
    """The parameters that both are after every k-th step (Zhang et al. 2019, algorithm 1)."""
    return slow + part * (parameters - slow)


def clip_by_global_norm(gradient: FloatArray, max_norm: float) -> tuple[FloatArray, float]:
    """(g * min(1, max_norm / (norm + 1e-6)), norm), norm = sqrt(sum of g^2) over all parameters.

    Pascanu et al. 2013.
    """
    gradient = float64(gradient)
    norm = float(np.sqrt((gradient**2).sum()))
    return gradient * min(1.0, max_norm / (norm + 1e-6)), norm


def _value(state: State, name: str, parameters: FloatArray) -> FloatArray:
    """The vector ``name`` of a state, zeros before the first step."""
    return state.get(name, np.zeros_like(parameters))
