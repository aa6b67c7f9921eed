"""Patterns of names: which parameters are frozen, and which have learning rates of their own.

A pattern is the name of a layer (``conv1``) or of a parameter (``conv1/weight``), in which ``*`` stands for any text,
``?`` for any character and ``[ab]`` for one of some. That of a layer stands for all its parameters.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

from blobnet.errors import OptionError, first_few, near_matches
from blobnet.network.graph import Graph


def frozen_parameters(graph: Graph, patterns: str | Iterable[str]) -> frozenset[str]:
    """The names of the trainable parameters that patterns stand for.

    Raises:
        OptionError: a pattern stands for no parameter that could be trained, or all of them together for every one.
    """
    items = [patterns] if isinstance(patterns, str) else list(patterns)
    frozen = {name for pattern in items for name in _matches(graph, "freeze", pattern)}
    trainable = graph.trainable
    if items and len(frozen) == len(trainable):
        rule = "something must be left to train, but all trainable parameters are frozen"
        raise OptionError("freeze", rule, freeze=first_few(items, 6), parameters=len(trainable))
    return frozenset(frozen)


def recorded_frozen(graph: Graph, names: Any) -> frozenset[str]:
    """Return the layers that an interrupted training froze, as its file says.

    Raises:
        OptionError: these are not some of the parameters that the model could train.
    """
    fits = isinstance(names, list) and all(name in graph.trainable for name in names)
    if not fits or (names and len(set(names)) == len(graph.trainable)):
        rule = "what the interrupted training froze must be parameters of the model"
        raise OptionError("resume", rule, frozen=str(names)[:80], hint="train without resume.")
    return frozenset(names)


def rate_factors(graph: Graph, rates: Iterable[tuple[str, float]], layer_decay: float = 1.0) -> dict[str, float]:
    """The factor of the learning rate of each parameter that patterns stand for: that of the first one that does.

    Args:
        graph: whose parameters they are.
        rates: patterns and factors.
        layer_decay: a factor besides, for each layer behind the parameter's (:func:`layers_behind`).

    Raises:
        OptionError: a pattern stands for no parameter that could be trained.
    """
    factors: dict[str, float] = {}
    for pattern, factor in rates:
        factors = {**dict.fromkeys(_matches(graph, "rates", pattern), factor), **factors}
    if layer_decay == 1:
        return factors
    return {name: factors.get(name, 1.0) * layer_decay**behind for name, behind in layers_behind(graph).items()}


def layers_behind(graph: Graph) -> dict[str, int]:
    """Return for each parameter that could be trained how many layers are behind its own.

    One layer are all parameters whose names begin alike: up to their last number that ``_`` follows
    (``stage1_block2_``, ``block3_layer1_``), or up to the last word without a number (``stem_conv``, ``stem_norm``).
    What has nothing that decays (a last norm) is part of the layer before it.
    """
    layers: dict[str, int] = {}
    behind = {}
    weights = {_layer_of(name) for name in graph.trainable if graph.named_parameters[name].decayed}
    number = 0
    for name in graph.trainable:
        layer = _layer_of(name)
        if layer not in layers:
            number += layer in weights and bool(layers)
            layers[layer] = number
        behind[name] = layers[layer]
    return {name: number - own for name, own in behind.items()}


def _layer_of(parameter: str) -> str:
    vertex = parameter.rpartition("/")[0]
    block = re.match(r"(.*\d)_", vertex)
    return block[1] if block else re.sub(r"_[^_\d]+$", "", vertex)


def _matches(graph: Graph, subject: str, pattern: object) -> Sequence[str]:
    if not isinstance(pattern, str):
        raise OptionError(subject, "patterns must be names of layers or parameters", pattern=repr(pattern))
    found = [name for name in graph.trainable if stands_for(pattern, name)]
    if not found:
        layers = [vertex.name for vertex in graph.vertices]
        known = sorted({name.rpartition("/")[0] for name in graph.trainable})
        without = pattern in layers
        rule = "every pattern must stand for parameters that can be trained"
        hint = f"{pattern} has none." if without else near_matches(pattern, known)
        raise OptionError(subject, rule, pattern=repr(pattern), hint=hint)
    return found


def stands_for(pattern: str, parameter: str) -> bool:
    """Return True if a pattern is that of a parameter, by its name, or of its layer."""
    return _fits(parameter, pattern) or _fits(parameter.rpartition("/")[0], pattern)


def _fits(name: str, pattern: str) -> bool:
    # NOTE: a name may have brackets of its own.
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
