"""First values of parameters.

Every parameter has a random stream of its own, from the seed and its full name: its values depend neither on other
parameters nor on the order in which they are drawn.

Of a weight (O, I, height, width), (O, I, width) or (O, I): fan_in = I * height * width, fan_out = O * height * width. A
bias has no fan of its own; its initializer names that of its weight: ``fan_in_uniform(25)``. ``constant(0.25)`` is that
number everywhere.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from blobnet.errors import OptionError, near_matches
from blobnet.memory.blob import FloatArray
from blobnet.support.checks import is_int
from blobnet.support.cores import usable_cores

if TYPE_CHECKING:
    from blobnet.layers.base import ParameterSpec

#: Values that are drawn at once.
_PIECE = 1 << 20
#: Values of a parameter that is asked for together with all others.
_LARGE = 1 << 10
_NAME = re.compile(r"(\w+)(?:\(([1-9]\d*)\))?$")
_CONSTANT = re.compile(r"constant\((-?\d+(?:\.\d+)?(?:e-?\d+)?)\)$")


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


#: What is given with a layer and never drawn; zeros where nothing was given.
GIVEN = "given"

Initializer = Callable[[np.random.Generator, int, int, int], FloatArray]

#: Those that need no fan, and those that do.
WITHOUT_FAN: dict[str, Initializer] = {"zeros": zeros, "ones": ones, GIVEN: zeros}
WITH_FAN: dict[str, Initializer] = {
    function.__name__: function for function in (he_normal, he_uniform, glorot_uniform, fan_in_uniform)
}
INITIALIZERS = WITHOUT_FAN | WITH_FAN


def check_initializer(subject: str, initializer: str) -> None:
    """Raises OptionError unless ``initializer`` names one of INITIALIZERS, with or without a fan_in, or a constant."""
    match = _NAME.match(str(initializer))
    if not _CONSTANT.match(str(initializer)) and (not match or match[1] not in INITIALIZERS):
        hint = near_matches(str(initializer), [*INITIALIZERS, "constant(0.25)"])
        raise OptionError(subject, "the initializer must be a known one", initializer=initializer, hint=hint)


def check_spec(spec: ParameterSpec, name: str, seed: int) -> None:
    """Raises OptionError unless :func:`initialize` can draw the parameter."""
    check_initializer(name, spec.initializer)
    if not is_int(seed, 0):
        raise OptionError(name, "the seed must be an int of at least 0", seed=seed)
    kind, fan = _parsed(spec.initializer)
    if not fan and len(spec.shape) < 2 and kind not in WITHOUT_FAN.values():
        raise OptionError(
            name,
            "this initializer needs a parameter of at least 2 axes, or its fan_in",
            initializer=spec.initializer,
            shape=spec.shape,
            hint=f"write '{spec.initializer}(N)', with N the weight's inputs to one output.",
        )


def _parsed(initializer: str) -> tuple[Initializer, int | None]:
    """Return the function of a checked initializer, and its own fan if it has one."""
    if constant := _CONSTANT.match(initializer):
        value = float(constant[1])
        return lambda random, elements, *_: np.full(elements, value, np.float32), 1
    kind, fan = _NAME.match(initializer).groups()  # type: ignore[union-attr]
    return INITIALIZERS[kind], int(fan) if fan else None


def initialize(spec: ParameterSpec, name: str, seed: int, place: FloatArray | None = None) -> FloatArray:
    """The first values of a parameter, of the shape ``spec.shape``.

    Args:
        spec: the parameter; ``spec.initializer`` names one of INITIALIZERS. ``name(N)`` gives it the fan_in N (and
            fan_out N) instead of that of the shape; ``constant(V)`` is V everywhere.
        name: the parameter's full name in the model: ``<layer>/<parameter>``.
        seed: of the whole model.
        place: a flat array to draw them into; a new one if None.

    Raises:
        OptionError: an unknown initializer, one that needs a fan for a parameter that has none, or a negative seed.
    """
    check_spec(spec, name, seed)
    draw, fan = _parsed(spec.initializer)
    fan_in = fan_out = fan or 1
    if not fan and len(spec.shape) >= 2:
        fan_in, fan_out = math.prod(spec.shape[1:]), math.prod((spec.shape[0], *spec.shape[2:]))
    random = np.random.default_rng([int(seed), zlib.crc32(name.encode())])
    values = np.empty(spec.elements, np.float32) if place is None else place
    for first in range(0, spec.elements, _PIECE):  # Random numbers come as float64, which is twice the memory.
        piece = values[first : first + _PIECE]
        piece[:] = draw(random, piece.size, fan_in, fan_out)
    return values.reshape(spec.shape)


class FirstWeights(Mapping[str, FloatArray]):
    """The first values of all parameters, by name, drawn when they are first asked for.

    A model that is only planned, or gets its weights from a file, draws none. Who asks for a large one will want all:
    they are drawn side by side, which NumPy does without holding Python's lock.

    Args:
        specs: the parameters, by their full names.
        seed: of the whole model.

    Raises:
        OptionError: as for :func:`initialize`.
    """

    def __init__(self, specs: Mapping[str, ParameterSpec], seed: int) -> None:
        for name, spec in specs.items():
            check_spec(spec, name, seed)
        self._specs, self._seed = dict(specs), seed
        self._drawn: dict[str, FloatArray] = {}

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._drawn:
            is_large = self._specs[name].elements >= _LARGE
            self._draw(dict.fromkeys(self._specs if is_large else [name]))
        return self._drawn[name]

    def put_into(self, places: Mapping[str, FloatArray]) -> None:
        """Copies all into flat arrays. Those not drawn yet are drawn there, and stay: nobody may change them."""
        self._draw(places)
        for name, place in places.items():
            values = self._drawn[name].reshape(-1)
            if not np.may_share_memory(values, place):
                place[:] = values

    def _draw(self, places: Mapping[str, FloatArray | None]) -> None:
        missing = [name for name in places if name not in self._drawn]
        if not missing:
            return
        with ThreadPoolExecutor(min(len(missing), usable_cores())) as pool:
            drawn = pool.map(lambda name: initialize(self._specs[name], name, self._seed, places[name]), missing)
            self._drawn |= zip(missing, drawn, strict=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)
