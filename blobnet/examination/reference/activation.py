"""Activations and their derivatives; at a kink the derivative is PyTorch's.

Each ``f(x)`` has an ``f_backward(x, delta)`` = dL/dx in the shape of x; ``ACTIVATIONS`` names all pairs. Arguments are
(N, C, any axes), and all but softmax (over the units, axis 1) work value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def linear(x: FloatArray) -> FloatArray:
    """The value itself."""
    return float64(x.copy())


def linear_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative 1."""
    return float64(delta.copy())


def relu(x: FloatArray) -> FloatArray:
    """max(x, 0) (Nair and Hinton 2010)."""
    x = float64(x)
    return np.maximum(x, 0.0)


def relu_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative 1 where x > 0, else 0."""
    x, delta = float64(x), float64(delta)
    return np.where(x > 0.0, delta, 0.0)


def relu6(x: FloatArray) -> FloatArray:
    """min(max(x, 0), 6) (Krizhevsky 2010)."""
    x = float64(x)
    return np.minimum(np.maximum(x, 0.0), 6.0)


def relu6_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative 1 where 0 < x < 6, else 0."""
    x, delta = float64(x), float64(delta)
    return np.where((x > 0.0) & (x < 6.0), delta, 0.0)


def limited_relu(x: FloatArray, limit: float) -> FloatArray:
    """min(max(x, 0), limit)."""
    x = float64(x)
    return np.minimum(np.maximum(x, 0.0), limit)


def limited_relu_backward(x: FloatArray, delta: FloatArray, limit: float) -> FloatArray:
    """Derivative 1 where 0 < x < limit, else 0."""
    x, delta = float64(x), float64(delta)
    return np.where((x > 0.0) & (x < limit), delta, 0.0)


def leaky_relu(x: FloatArray, slope: float = 0.01) -> FloatArray:
    """X where x > 0, else slope * x (Maas et al. 2013)."""
    x = float64(x)
    return np.where(x > 0.0, x, slope * x)


def leaky_relu_backward(x: FloatArray, delta: FloatArray, slope: float = 0.01) -> FloatArray:
    """Derivative 1 where x > 0, else ``slope``."""
    x, delta = float64(x), float64(delta)
    return np.where(x > 0.0, delta, slope * delta)


def elu(x: FloatArray, alpha: float = 1.0) -> FloatArray:
    """X where x > 0, else alpha * (exp(x) - 1) (Clevert et al. 2015)."""
    x = float64(x)
    return np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def elu_backward(x: FloatArray, delta: FloatArray, alpha: float = 1.0) -> FloatArray:
    """Derivative 1 where x > 0, else alpha * exp(x)."""
    x, delta = float64(x), float64(delta)
    return np.where(x > 0.0, delta, delta * alpha * np.exp(np.minimum(x, 0.0)))


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), without overflow on either side."""
    x = float64(x)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, small) / (1.0 + small)


def sigmoid_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative s(x) * s(-x)."""
    x, delta = float64(x), float64(delta)
    return delta * sigmoid(x) * sigmoid(-x)


def hard_sigmoid(x: FloatArray) -> FloatArray:
    """min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return float64(relu6(float64(x) + 3.0) / 6.0)


def hard_sigmoid_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative 1/6 where -3 < x < 3, else 0."""
    return float64(relu6_backward(float64(x) + 3.0, delta) / 6.0)


def tanh(x: FloatArray) -> FloatArray:
    """The hyperbolic tangent."""
    x = float64(x)
    return np.tanh(x)


def tanh_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative 1 - tanh(x)^2, as 4 s(2x) s(-2x), which does not cancel."""
    x, delta = float64(x), float64(delta)
    return delta * 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x)


def silu(x: FloatArray) -> FloatArray:
    """X * sigmoid(x) (Elfwing et al. 2017)."""
    x = float64(x)
    return x * sigmoid(x)


def silu_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative s(x) * (1 + x * s(-x))."""
    x, delta = float64(x), float64(delta)
    return delta * sigmoid(x) * (1.0 + x * sigmoid(-x))


def hard_swish(x: FloatArray) -> FloatArray:
    """X * hard_sigmoid(x) (Howard et al. 2019)."""
    x = float64(x)
    return x * hard_sigmoid(x)


def hard_swish_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative h(x) + x * h'(x), h = hard_sigmoid."""
    x, delta = float64(x), float64(delta)
    return delta * hard_sigmoid(x) + x * hard_sigmoid_backward(x, delta)


def mish(x: FloatArray) -> FloatArray:
    """X * tanh(softplus(x)) (Misra 2019)."""
    x = float64(x)
    return x * np.tanh(softplus(x))


def mish_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative t + x * (1 - t^2) * s(x), t = tanh(softplus(x))."""
    x, delta = float64(x), float64(delta)
    return delta * np.tanh(softplus(x)) + x * tanh_backward(softplus(x), delta) * sigmoid(x)


def gelu(x: FloatArray) -> FloatArray:
    """X * Phi(x), exact: Phi(x) = erfc(-x / sqrt(2)) / 2 (Hendrycks and Gimpel 2016)."""
    x = float64(x)
    return x * _normal_distribution(x)


def gelu_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative Phi(x) + x * phi(x), phi(x) = exp(-x^2 / 2) / sqrt(2 pi)."""
    x, delta = float64(x), float64(delta)
    return delta * (_normal_distribution(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


def softplus(x: FloatArray) -> FloatArray:
    """log(1 + exp(x)), exact everywhere (PyTorch returns x itself beyond x = 20)."""
    x = float64(x)
    return np.logaddexp(0.0, x)


def softplus_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Derivative s(x)."""
    x, delta = float64(x), float64(delta)
    return delta * sigmoid(x)


def softmax(x: FloatArray) -> FloatArray:
    """exp(x) / sum over the units (axis 1) of exp(x)."""
    x = float64(x)
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return float64(power / power.sum(axis=1, keepdims=True))


def softmax_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """Dx = y * (delta - sum over the units of delta * y)."""
    x, delta = float64(x), float64(delta)
    y = softmax(x)
    return float64(y * (delta - (delta * y).sum(axis=1, keepdims=True)))


def _normal_distribution(x: FloatArray) -> FloatArray:
    return float64(0.5 * _erfc(-x / math.sqrt(2.0)))


ACTIVATIONS: dict[str, tuple[Callable[[FloatArray], FloatArray], Callable[[FloatArray, FloatArray], FloatArray]]] = {
    "linear": (linear, linear_backward),
    "relu": (relu, relu_backward),
    "relu6": (relu6, relu6_backward),
    "leaky_relu": (leaky_relu, leaky_relu_backward),
    "elu": (elu, elu_backward),
    "sigmoid": (sigmoid, sigmoid_backward),
    "hard_sigmoid": (hard_sigmoid, hard_sigmoid_backward),
    "tanh": (tanh, tanh_backward),
    "hard_swish": (hard_swish, hard_swish_backward),
    "mish": (mish, mish_backward),
    "silu": (silu, silu_backward),
    "gelu": (gelu, gelu_backward),
    "softplus": (softplus, softplus_backward),
    "softmax": (softmax, softmax_backward),
}
"""name -> (f(x), f_backward(x, delta)), with the default slope and alpha."""

_NUMBERED: dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray]]] = {
    "relu": (limited_relu, limited_relu_backward),
    "leaky_relu": (leaky_relu, leaky_relu_backward),
}


def named(text: str) -> tuple[Callable[[FloatArray], FloatArray], Callable[[FloatArray, FloatArray], FloatArray]]:
    """The pair for a name, which may have a number after it, as in ``leaky_relu(0.2)``."""
    name, _, number = text.rstrip(")").partition("(")
    if not number:
        return ACTIVATIONS[name]
    forward, backward = _NUMBERED[name]
    return lambda x: forward(x, float(number)), lambda x, delta: backward(x, delta, float(number))
