"""Samples as a network takes them: a source for each of its inputs, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blobnet.datasets.source import Source, is_stream, source_of
from blobnet.ends import in_order, part_subject
from blobnet.errors import DataError
from blobnet.graph import Graph


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
    given = in_order(names, x, subject, "input", DataError)
    sources = tuple(source_of(item, where) for item, where in zip(given, subjects, strict=True))
    for source, vertex, where in zip(sources, graph.inputs.values(), subjects, strict=True):
        wanted = vertex.shape.dimensions
        if source.shape[1:] != wanted:
            rule = "each sample must have the shape of the model's input"
            raise DataError(where, rule, sample=source.shape[1:], input=wanted, hint=_hint(source.shape, wanted))
    if len({len(source) for source in sources}) > 1:
        listed = ", ".join(f"{name} {len(source)}" for name, source in zip(names, sources, strict=True))
        raise DataError(subject, "all inputs must have the same number of samples", samples=listed)
    return sources


def _hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """What makes an array of a shape one of samples, if its axes are the wanted ones."""
    units, *sizes = wanted
    if shape == wanted:
        return "the first axis are the samples; a single one is x[None]."
    if sizes and shape[1:] == (*sizes, units):
        return "units (channels) come first: numpy.moveaxis(x, -1, 1), and likewise in prediction."
    if units == 1 and shape[1:] == tuple(sizes):
        return "the second axis are the units (channels): x[:, None]."
    return None


def comes_in_batches(graph: Graph, x: Any) -> bool:
    """Whether samples come as an iterable of batches; a list for several inputs is one of their arrays."""
    return is_stream(x) and not isinstance(x, Mapping) and not (len(graph.entries) > 1 and isinstance(x, list | tuple))
