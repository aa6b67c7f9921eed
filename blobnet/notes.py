"""Notes on trainings that run, but hardly as they were meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from blobnet.blob import FloatArray
from blobnet.datasets.source import Source
from blobnet.ends import Head
from blobnet.errors import warn
from blobnet.graph import Graph, Vertex

#: Samples that are looked at.
_LOOKED_AT = 8
#: Root mean squares of normalised samples beyond this, and deviations below that, are of other samples.
_LARGE, _SMALL = 10.0, 0.1


def note_losses(heads: Sequence[Head], graph: Graph) -> None:
    """Warns where a loss that takes logits gets probabilities."""
    for head in heads:
        layer = graph.vertices[head.index].layer
        if layer.gives_probabilities and head.loss.scores(np.zeros((1, 2), np.float32)) is not None:
            name = type(head.loss).__name__
            rule = f"{name} takes logits, and does itself what this layer does: the model learns slowly"
            warn(layer.subject, rule, hint="leave it out; predictions are then logits.")


def note_scale(
    graph: Graph, entry: Vertex, weights: Mapping[str, FloatArray], source: Source, *, training: bool
) -> None:
    """Warns where samples of an input have another scale than those that the model was made, or fits, for."""
    mean, deviation = (weights[entry.parameter(part)].astype(np.float64) for part in ("mean", "deviation"))
    is_plain = not mean.any() and (deviation == 1).all()
    if is_plain and not training:
        return
    rows = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    samples = np.empty((len(rows), *source.shape[1:]), source.dtype)
    source.read(rows, samples)
    values = samples.reshape(len(rows), len(mean), -1).astype(np.float64)
    values = (values - mean[:, None]) / deviation[:, None]
    rms, spread = float(np.sqrt(np.square(values).mean())), float(values.std())
    received = {"root_mean_square": f"{rms:.3g}", "deviation": f"{spread:.3g}"}
    if not is_plain and (rms > _LARGE or (spread < _SMALL and len(rows) == _LOOKED_AT)):
        rule = (
            "normalised samples should have a deviation of about 1; these seem to have another scale than those before"
        )
        hint = "pictures from 0 to 255, say, are not those from 0 to 1: scale them, or set_normalization."
        warn("x", rule, hint=hint, **received)
    elif is_plain and rms > _LARGE and not _normalises(graph, entry):
        rule = "samples should be normalised: with values as large as these a model hardly learns"
        hint = "model.set_normalization(mean, deviation) makes it part of the model."
        warn("x", rule, hint=hint, **received)


def _normalises(graph: Graph, entry: Vertex) -> bool:
    """Whether the first layers normalise samples by themselves."""
    return all(graph.vertices[reader].layer.kind == "BatchNorm" for reader in graph.readers[entry.index])
