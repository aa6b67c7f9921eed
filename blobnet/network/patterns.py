"""Patterns of names: which parameters are frozen, and which have learning rates of their own.

A pattern is the name of a layer (``conv1``) or of a parameter (``conv1/weight``), in which ``*`` stands for any text,
``?`` for any character and ``[ab]`` for one of some. That of a layer stands for all its parameters.
"""

from __future__ import annotations

import fnmatch
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


def rate_factors(graph: Graph, rates: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The factor of the learning rate of each parameter that patterns stand for: that of the first one that does.

    Raises:
        OptionError: a pattern stands for no parameter that could be trained.
    """
    factors: dict[str, float] = {}
    for pattern, factor in rates:
        factors = {**dict.fromkeys(_matches(graph, "rates", pattern), factor), **factors}
    return factors


def _matches(graph: Graph, subject: str, pattern: object) -> Sequence[str]:
    if not isinstance(pattern, str):
        raise OptionError(subject, "patterns must be names of layers or parameters", pattern=repr(pattern))
    found = [name for name in graph.trainable if _fits(name, pattern) or _fits(name.rpartition("/")[0], pattern)]
    if not found:
        layers = [vertex.name for vertex in graph.vertices]
        known = sorted({name.rpartition("/")[0] for name in graph.trainable})
        without = pattern in layers
        rule = "every pattern must stand for parameters that can be trained"
        hint = f"{pattern} has none." if without else near_matches(pattern, known)
        raise OptionError(subject, rule, pattern=repr(pattern), hint=hint)
    return found


def _fits(name: str, pattern: str) -> bool:
    # NOTE: a name may have brackets of its own.
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
