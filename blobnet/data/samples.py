"""Samples as a network takes them: a source for each of its inputs, in their order."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.pictures import from_pillow, is_pillow
from blobnet.datasets.source import Restarted, Source, is_stream, source_of
from blobnet.errors import DataError
from blobnet.network.ends import part_subject, to_list
from blobnet.network.graph import Graph


def samples_for(graph: Graph, x: Any, subject: str) -> Source:
    """Samples for a model of one input: see :func:`blobnet.datasets.source.source_of`.

    Raises:
        DataError: they have another shape than the model's input, or cannot be samples at all.
        OptionError: the model has several inputs.
    """
    _ = graph.input
    return sources_for(graph, x, subject)[0]


def sources_for(graph: Graph, x: Any, subject: str) -> tuple[Source, ...]:
    """Samples for a model, one source for each input.

    Args:
        graph: the model.
        x: as for source_of; for several inputs a mapping by their names, or a list in their order.
        subject: what errors call it.

    Raises:
        DataError: there is not one for each input, one has another shape than its input, or another number of samples,
            or cannot be samples at all.
    """
    names = list(graph.inputs)
    subjects = [part_subject(subject, name, names) for name in names]
    given = to_list(names, x, subject, "input", DataError)
    shapes = [vertex.shape.dimensions for vertex in graph.inputs.values()]
    sources = tuple(
        source_of(_as_samples(item, shape, where), where)
        for item, shape, where in zip(given, shapes, subjects, strict=True)
    )
    for source, wanted, where in zip(sources, shapes, subjects, strict=True):
        if source.shape[1:] != wanted:
            rule = "each sample must have the shape of the model's input"
            raise DataError(where, rule, sample=source.shape[1:], input=wanted, hint=_hint(source.shape, wanted))
    if len({len(source) for source in sources}) > 1:
        listed = ", ".join(f"{name} {len(source)}" for name, source in zip(names, sources, strict=True))
        raise DataError(subject, "all inputs must have the same number of samples", samples=listed)
    return sources


def _hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """Return a hint how an array of a shape becomes samples, if its axes are the wanted ones."""
    units, *sizes = wanted
    if shape == wanted:
        return "the first axis are the samples; a single one is x[None]."
    if sizes and shape[1:] == (*sizes, units):
        return "units (channels) come first: numpy.moveaxis(x, -1, 1), and likewise in prediction."
    if units == 1 and shape[1:] == tuple(sizes):
        return "the second axis are the units (channels): x[:, None]."
    return None


def comes_in_batches(graph: Graph, x: Any) -> bool:
    """Return True if samples come as an iterable of batches; a list for several inputs is one of arrays."""
    if are_samples(graph, x):
        return False
    return is_stream(x) and not isinstance(x, Mapping) and not (len(graph.entries) > 1 and isinstance(x, list | tuple))


# -- what other packages have in place of arrays ----------------------------------------------------------------------


class _Items:
    """Samples that come one by one for whole numbers, as Torch's data sets give them, as a batch for an array of these.

    Args:
        items: gives samples, or pairs of a sample and its label.
        shape: of a sample.
    """

    def __init__(self, items: Any, shape: tuple[int, ...]) -> None:
        self._items, self._shape = items, shape

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.stack([_sample(self._items[int(row)], self._shape) for row in rows])


def _sample(item: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A sample, which may be a Pillow picture, and may stand in a pair with its label."""
    x = item[0] if _is_pair(item) else item
    return from_pillow(x, shape, "x") if is_pillow(x) else np.asarray(x)


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def _is_sample(item: Any, shape: tuple[int, ...]) -> bool:
    """Return True if an item is one sample of that shape, and no batch."""
    x = item[0] if _is_pair(item) else item
    return is_pillow(x) or (hasattr(x, "shape") and tuple(x.shape) == shape)


def _first(x: Any) -> Any:
    """The first item of what gives items by whole numbers and is no array; None if there is none."""
    if hasattr(x, "shape") or isinstance(x, Mapping | str | bytes) or not hasattr(x, "__getitem__"):
        return None
    try:
        return x[0] if len(x) else None
    except Exception:  # Whatever a class of a user's own does where it is asked for something else.
        return None


def _as_samples(x: Any, shape: tuple[int, ...], subject: str) -> Any:
    """Convert a picture, a list of samples, or an object that gives samples one by one to what source_of takes."""
    if is_pillow(x):
        return from_pillow(x, shape, subject)[None]
    if hasattr(x, "column_names") and not hasattr(x, "__array__"):
        rule = "samples must be an array, and not a table of columns"
        names = [*map(str, x.column_names)]
        hint = f"give its columns one by one: fit(table[{names[0]!r}], table[{names[-1]!r}]), say."
        raise DataError(subject, rule, columns=", ".join(names), hint=hint)
    if isinstance(x, list | tuple) and _is_sample(_first(x), shape):
        return _Items(x, shape)[np.arange(len(x))]
    return _Items(x, shape) if _is_sample(_first(x), shape) and not _gives_batches(x, shape) else x


def _gives_batches(x: Any, shape: tuple[int, ...]) -> bool:
    """Return True if an object with items by number also gives batches for arrays of numbers, which is faster."""
    try:
        return tuple(x[np.zeros(1, np.int64)].shape) == (1, *shape)
    except Exception:
        return False


def are_samples(graph: Graph, x: Any) -> bool:
    """Return True if a list, or a single picture, holds samples for a model of one input, and no batches."""
    return len(graph.entries) == 1 and (is_pillow(x) or _is_sample(_first(x), graph.input.shape.dimensions))


class _Numbered:
    """Batches by their numbers, as an iterable."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return (self._batches[number] for number in range(len(self)))


def as_batches(graph: Graph, x: Any) -> Any:
    """An iterable of batches in place of a function that gives one, and of what gives batches by their numbers.

    The former may be a generator function, the latter is a Sequence of Keras's: its items are pairs of a batch and its
    labels. All else stays as it is.
    """
    if inspect.isfunction(x) or inspect.ismethod(x):
        return Restarted(x)
    first = None if len(graph.entries) > 1 or isinstance(x, list | tuple) else _first(x)
    if not _is_pair(first) or _is_sample(first, graph.input.shape.dimensions):
        return x
    return _Numbered(x)


def with_labels(graph: Graph, x: Any, y: Any) -> tuple[Any, Any]:
    """Samples and labels, or an iterable of batches and None, of what brings its labels along.

    Args:
        graph: the model.
        x: besides what source_of and :func:`as_batches` take: what gives pairs of a sample and its label by their
            numbers, a data set of Torch's or a list. All labels are read, each with its sample.
        y: labels; None where ``x`` has them.
    """
    if y is not None or len(graph.entries) > 1:
        return x, y
    first, shape = _first(x), graph.input.shape.dimensions
    if _is_pair(first) and _is_sample(first, shape):
        return _Items(x, shape), np.stack([np.asarray(x[number][1]) for number in range(len(x))])
    return as_batches(graph, x), None
