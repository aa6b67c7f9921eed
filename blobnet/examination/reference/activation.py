"""Activations and their derivatives; at a kink the derivative is PyTorch's.

``named`` gives f(x) and the f_backward(x, delta) = dL/dx of a function. Arguments are (N, C, any axes), and all
functions but softmax, which runs over the units (axis 1), work value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64

Forward: TypeAlias = Callable[[FloatArray], FloatArray]
Backward: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), without overflow on either side."""
    x = float64(x)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, small) / (1.0 + small)


def _softplus(x: FloatArray) -> FloatArray:
    """log(1 + exp(x)), exact everywhere (PyTorch returns x itself beyond x = 20)."""
    return np.logaddexp(0.0, x)


def _tanh_slope(x: FloatArray) -> FloatArray:
    """1 - tanh(x)^2, as 4 s(2x) s(-2x), which does not cancel."""
    return 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x)


def _hard_sigmoid(x: FloatArray) -> FloatArray:
    return np.clip(x + 3.0, 0.0, 6.0) / 6.0


def _hard_sigmoid_slope(x: FloatArray) -> FloatArray:
    return (np.abs(x) < 3.0) / 6.0


def _normal(x: FloatArray) -> FloatArray:
    """The distribution function of the normal distribution: erfc(-x / sqrt(2)) / 2."""
    return float64(0.5 * _erfc(-x / math.sqrt(2.0)))


def _normal_slope(x: FloatArray) -> FloatArray:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


#: f and f' of the functions of single values; those with a number take it as their second argument.
_FUNCTIONS: dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray]]] = {
    "linear": (np.copy, np.ones_like),
    # Nair and Hinton 2010; with a limit as relu6, Krizhevsky 2010.
    "relu": (
        lambda x, limit=math.inf: np.clip(x, 0.0, limit),
        lambda x, limit=math.inf: (x > 0.0) & (x < limit),
    ),
    "relu6": (lambda x: np.clip(x, 0.0, 6.0), lambda x: (x > 0.0) & (x < 6.0)),
    # Maas et al. 2013.
    "leaky_relu": (
        lambda x, slope=0.01: np.where(x > 0.0, x, slope * x),
        lambda x, slope=0.01: np.where(x > 0.0, 1.0, slope),
    ),
    # Clevert et al. 2015.
    "elu": (
        lambda x, alpha=1.0: np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0))),
        lambda x, alpha=1.0: np.where(x > 0.0, 1.0, alpha * np.exp(np.minimum(x, 0.0))),
    ),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    # Howard et al. 2019, hard_swish too.
    "hard_sigmoid": (_hard_sigmoid, _hard_sigmoid_slope),
    "hard_swish": (lambda x: x * _hard_sigmoid(x), lambda x: _hard_sigmoid(x) + x * _hard_sigmoid_slope(x)),
    "tanh": (np.tanh, _tanh_slope),
    # Elfwing et al. 2017.
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1.0 + x * sigmoid(-x))),
    # Misra 2019.
    "mish": (
        lambda x: x * np.tanh(_softplus(x)),
        lambda x: np.tanh(_softplus(x)) + x * _tanh_slope(_softplus(x)) * sigmoid(x),
    ),
    # Hendrycks and Gimpel 2016, the exact one.
    "gelu": (lambda x: x * _normal(x), lambda x: _normal(x) + x * _normal_slope(x)),
    "softplus": (_softplus, sigmoid),
}
#: The names of all functions.
ACTIVATIONS = (*_FUNCTIONS, "softmax")


def named(text: str) -> tuple[Forward, Backward]:
    """The pair for a name, which may have a number after it, as in ``leaky_relu(0.2)``."""
    if text == "softmax":
        return _softmax, _softmax_backward
    name, _, number = text.rstrip(")").partition("(")
    numbers = (float(number),) if number else ()
    function, slope = _FUNCTIONS[name]
    return (
        lambda x: float64(function(float64(x), *numbers)),
        lambda x, delta: float64(float64(delta) * slope(float64(x), *numbers)),
    )


def _softmax(x: FloatArray) -> FloatArray:
    """exp(x) / sum over the units (axis 1) of exp(x)."""
    x = float64(x)
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return float64(power / power.sum(axis=1, keepdims=True))


def _softmax_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Dx = y * (delta - sum over the units of delta * y)."""
    delta, y = float64(delta), _softmax(x)
    return float64(y * (delta - (delta * y).sum(axis=1, keepdims=True)))
