"""First values of parameters.

Every parameter has a random stream of its own, from the seed and its full name: its values depend neither on other
parameters nor on the order in which they are drawn.

Of a weight (O, I, height, width), (O, I, width) or (O, I): fan_in = I * height * width, fan_out = O * height * width. A
bias has no fan of its own; its initializer names that of its weight: ``fan_in_uniform(25)``.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from blobnet.blob import FloatArray
from blobnet.errors import OptionError, near_matches

if TYPE_CHECKING:
    from blobnet.layers.base import ParameterSpec

_NAME = re.compile(r"(\w+)(?:\(([1-9]\d*)\))?$")


def zeros(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """0 everywhere."""
    return np.zeros(elements, np.float32)


def ones(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """1 everywhere."""
    return np.ones(elements, np.float32)


def he_normal(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """Normal, deviation sqrt(2 / fan_in): keeps the variance through ReLU layers.

    He et al., *Delving Deep into Rectifiers*, 2015.
    """
    return (math.sqrt(2 / fan_in) * random.standard_normal(elements)).astype(np.float32)


def he_uniform(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """Uniform within +-sqrt(6 / fan_in): the deviation of :func:`he_normal`."""
    return _uniform(random, elements, math.sqrt(6 / fan_in))


def glorot_uniform(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """Uniform within +-sqrt(6 / (fan_in + fan_out)).

    Glorot and Bengio, *Understanding the difficulty of training deep feedforward neural networks*, 2010.
    """
    return _uniform(random, elements, math.sqrt(6 / (fan_in + fan_out)))


def fan_in_uniform(random: np.random.Generator, elements: int, fan_in: int, fan_out: int) -> FloatArray:
    """Uniform within +-1 / sqrt(fan_in): what PyTorch starts weights and biases of Conv and Linear with.

    LeCun et al., *Efficient BackProp*, 1998, within a factor.
    """
    return _uniform(random, elements, 1 / math.sqrt(fan_in))


def _uniform(random: np.random.Generator, elements: int, bound: float) -> FloatArray:
    return (bound * (2 * random.random(elements) - 1)).astype(np.float32)


Initializer = Callable[[np.random.Generator, int, int, int], FloatArray]

#: Those that need no fan, and those that do.
WITHOUT_FAN: dict[str, Initializer] = {"zeros": zeros, "ones": ones}
WITH_FAN: dict[str, Initializer] = {
    function.__name__: function for function in (he_normal, he_uniform, glorot_uniform, fan_in_uniform)
}
INITIALIZERS = WITHOUT_FAN | WITH_FAN


def check_initializer(subject: str, initializer: str) -> None:
    """Raises OptionError unless ``initializer`` names one of INITIALIZERS, with or without a fan_in."""
    match = _NAME.match(str(initializer))
    if not match or match[1] not in INITIALIZERS:
        hint = near_matches(str(initializer), list(INITIALIZERS))
        raise OptionError(subject, "the initializer must be a known one", initializer=initializer, hint=hint)


def initialize(spec: ParameterSpec, name: str, seed: int) -> FloatArray:
    """The first values of a parameter, of the shape ``spec.shape``.

    Args:
        spec: the parameter; ``spec.initializer`` names one of INITIALIZERS. ``name(N)`` gives it the fan_in N (and
            fan_out N) instead of that of the shape.
        name: the parameter's full name in the model: ``<layer>/<parameter>``.
        seed: of the whole model.

    Raises:
        OptionError: an unknown initializer, one that needs a fan for a parameter that has none, or a negative seed.
    """
    check_initializer(name, spec.initializer)
    match = _NAME.match(spec.initializer)
    assert match
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(name, "the seed must be an int of at least 0", seed=seed)
    if match[2]:
        fan_in = fan_out = int(match[2])
    elif len(spec.shape) >= 2:
        fan_in, fan_out = math.prod(spec.shape[1:]), math.prod((spec.shape[0], *spec.shape[2:]))
    elif match[1] in WITHOUT_FAN:
        fan_in = fan_out = 1
    else:
        raise OptionError(
            name,
            "this initializer needs a parameter of at least 2 axes, or its fan_in",
            initializer=spec.initializer,
            shape=spec.shape,
            hint=f"write '{match[1]}(N)', with N the weight's inputs to one output.",
        )
    random = np.random.default_rng([int(seed), zlib.crc32(name.encode())])
    return INITIALIZERS[match[1]](random, spec.elements, fan_in, fan_out).reshape(spec.shape)
