"""Notes on trainings that run, but hardly as they were meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from blobnet.datasets.source import Source
from blobnet.errors import warn
from blobnet.memory.blob import FloatArray
from blobnet.network.ends import Head
from blobnet.network.graph import Graph, Vertex

#: Samples that are looked at.
_LOOKED_AT = 8
#: Root mean squares of normalised samples beyond this, and deviations below that, are of other samples.
_LARGE, _SMALL = 10.0, 0.1
#: The activations that give all numbers.
_ALL_NUMBERS = ("linear", "leaky_relu")
#: The rows of a kernel from which on they may be filters, in another order of arguments.
_LARGE_KERNEL = 8
#: Times that of the first step, or 1, beyond which a loss has risen.
_RISEN = 10.0
#: What to do against losses that rise.
DIVERGED = "use a smaller learning rate, or clip the gradients (clip_norm)."
#: What to do where numbers between layers may be too large for halves.
BEYOND = "Halves hold nothing beyond 65504: precision='bf16' has the range of float32."


def note_losses(heads: Sequence[Head], graph: Graph) -> None:
    """Warns where a loss that takes logits gets probabilities, or values of an activation that leaves some out."""
    for head in heads:
        layer, name = graph.vertices[head.index].layer, type(head.loss).__name__
        function = layer.nonlinearity
        takes_logits = head.loss.scores(np.zeros((1, 2), np.float32)) is not None
        if not takes_logits or function is None:
            continue
        if function.gives_probabilities:
            rule = f"{name} takes logits, and does itself what this layer does: the model learns slowly"
            warn(layer.subject, rule, hint="leave it out; predictions are then logits.")
        elif function.text.partition("(")[0] not in _ALL_NUMBERS:
            rule = f"{name} takes logits, which may be any number, and this layer leaves some out"
            warn(layer.subject, rule, function=function.text, hint="end the model without an activation.")


def note_order(graph: Graph) -> None:
    """Warns where a convolution seems to have its numbers in PyTorch's order, which begins with the units coming in."""
    for vertex in graph.vertices:
        filters, kernel = (getattr(vertex.layer, name, None) for name in ("filters", "kernel_size"))
        if filters is None or not vertex.inputs or not isinstance(kernel, int):
            continue
        if filters == graph.vertices[vertex.inputs[0]].shape.units and kernel >= _LARGE_KERNEL:
            rule = "these numbers seem to be in PyTorch's order, which begins with the units that come in"
            hint = "the order is filters, kernel_size, stride; what comes in follows from the layer before."
            warn(vertex.layer.subject, rule, filters=filters, kernel_size=kernel, hint=hint)


def note_scale(
    graph: Graph, entry: Vertex, weights: Mapping[str, FloatArray], source: Source, *, training: bool
) -> None:
    """Warns where samples of an input have another scale than those that the model was made, or fits, for."""
    mean, deviation = (weights[entry.parameter(part)].astype(np.float64) for part in ("mean", "deviation"))
    is_plain = not mean.any() and (deviation == 1).all()
    if (is_plain and not training) or graph.holds_numbers(entry):
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


def note_single_values(graph: Graph, frozen: Collection[str], samples: int) -> None:
    """Warns where a batch norm that is trained sees one value a unit in a batch of so many samples."""
    for vertex in graph.vertices:
        trained = {vertex.parameter(spec.name) for spec in graph.parameters(vertex) if spec.trainable} - set(frozen)
        if vertex.layer.kind == "BatchNorm" and trained and samples * vertex.shape.positions == 1:
            rule = "a batch norm needs several values a unit in each batch: of one alone it makes 0, as Keras does"
            hint = "choose a batch_size that leaves no batch of a single sample, or freeze the layer."
            warn(vertex.layer.subject, rule, smallest_batch=samples, hint=hint)
            return


def note_divergence(first: float, record: Mapping[str, float], epoch: int) -> bool:
    """Warns where a loss of an epoch is far above that of the first step; returns whether one is."""
    limit = _RISEN * max(1.0, first)
    risen = {name: f"{record[name]:.3g}" for name in ("loss", "validation_loss") if record.get(name, 0.0) > limit}
    if risen:
        rule = "losses should fall; here they have risen far above that of the first step"
        warn("training", rule, epoch=epoch, **risen, first_step=f"{first:.3g}", hint=DIVERGED)
    return bool(risen)


def _normalises(graph: Graph, entry: Vertex) -> bool:
    """Return True if the first layers normalise samples by themselves."""
    return all(graph.vertices[reader].layer.kind == "BatchNorm" for reader in graph.readers[entry.index])
