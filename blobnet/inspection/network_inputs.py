"""Samples as a network gets them: what its input layer's kernel makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet import layers
from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import check_fit, partner_shares, rows_for
from blobnet.augment.words import augmentations_of
from blobnet.data.moved_labels import move_labels
from blobnet.datasets.dataset import STATISTICS_BYTES, unit_statistics
from blobnet.datasets.source import Rows, Source, source_of
from blobnet.device.device import Device
from blobnet.errors import DataError
from blobnet.execution.executor import Executor, plan_for
from blobnet.execution.loader import IndexedReader, Loader
from blobnet.layers import Layer
from blobnet.layers.input import AUGMENTATION_WORDS, POLICY_WORDS
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network.graph import Graph, from_nodes
from blobnet.network.parameters import DeviceParameters
from blobnet.support.checks import check_count

#: Samples that statistics are taken of where not all of them lie in memory, or where they are many.
STATISTICS_SAMPLES = 256


@dataclass(frozen=True, eq=False)
class Sheet:
    """Some samples of a data set, as a network gets them.

    Attributes:
        numbers: (M,), the samples' numbers in the data set.
        values: (M, units[[[, depth], height], width]), normalised and augmented.
        labels: (M, ...); of a class for each position moved along with the sample.
        partners: (M, ...), the labels of those that samples are mixed with.
        shares: (M,), the part of a sample that is its partner's; 0 where nothing is mixed.
        mean: that was subtracted, a number for each unit.
        deviation: that was divided by.
        augment: how they were changed.
    """

    numbers: Rows
    values: FloatArray
    labels: npt.NDArray[Any]
    partners: npt.NDArray[Any]
    shares: FloatArray
    mean: npt.NDArray[np.floating[Any]]
    deviation: npt.NDArray[np.floating[Any]]
    augment: tuple[Augmentation, ...]


def sample_sheet(  # noqa: PLR0913
    x: Any,
    y: Any,
    *,
    augment: Sequence[Augmentation] | Augmentation | str | None = None,
    normalization: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    count: int = 40,
    seed: int = 0,
    device: Device | str | None = None,
) -> Sheet:
    """The samples that a training begins with: the first ones of its first epoch.

    No others are read, but for the statistics: where the samples do not lie in memory, these are those of
    STATISTICS_SAMPLES.

    Args:
        x: samples, as for Model.fit; no iterable.
        y: a label for each.
        augment: how they change, as for Model.fit.
        normalization: the mean and deviation of each unit; None for those of the samples.
        count: how many samples; all if there are fewer.
        seed: of their order and of their changes.
        device: a device or its name; the best one if None.

    Raises:
        DataError: samples or labels that cannot be used.
        OptionError: an augmentation that does not fit the samples.
    """
    source = source_of(x, "x")
    labels = y if isinstance(y, Source) else np.asarray(y)
    if len(labels) != len(source):
        raise DataError("y", "there must be a label for each sample", x=len(source), y=len(labels))
    changes = augmentations_of(augment or ())
    count = min(check_count("samples", "count", count), len(source))
    # A sample's partner is the next one.
    mixes = any(augmentation.mixes for augmentation in changes)
    numbers = first_numbers(len(source), seed)[: count + mixes]
    entry = layers.Input.of(Shape(*source.shape[1:]), name="input")
    shape = entry.output_shape([])
    check_fit(changes, shape, Shape.flat(1), CrossEntropy())
    mean, deviation = normalization or statistics(source, seed)
    weights = {f"{entry.name}/mean": _float32(mean), f"{entry.name}/deviation": _float32(deviation)}
    opened = device if isinstance(device, Device) else Device(device)
    rows = rows_for(changes, shape, seed, 0, numbers)
    values = network_inputs(opened, entry, weights, source, numbers, rows if changes else None)
    shown = np.asarray(labels[numbers])
    shares = np.zeros(len(numbers), np.float32)
    has_positions = are_masks(shown, values)
    if has_positions or (mixes and len(numbers) > 1):
        if has_positions:
            shown = shown.astype(np.int32)
            move_labels(shown.reshape(len(shown), -1), rows, shape, CrossEntropy())
        shares = partner_shares(rows, shape, has_positions=has_positions)
    partners = np.roll(shown, -1, axis=0)[:count]
    drawn = numbers[:count], values[:count], shown[:count], partners, shares[:count]
    return Sheet(*drawn, np.asarray(mean), np.asarray(deviation), changes)


def are_masks(labels: npt.NDArray[Any], values: FloatArray) -> bool:
    """Return True if labels are a class for each position of pictures, (M, units, height, width)."""
    return labels.dtype.kind in "iu" and values.ndim == 4 and labels.shape == (len(values), *values.shape[2:])


def network_inputs(
    device: Device,
    entry: Layer,
    weights: Mapping[str, FloatArray],
    source: Source,
    numbers: Rows,
    changes: FloatArray | None = None,
) -> FloatArray:
    """The output of an input layer for some samples.

    Args:
        device: where its kernel runs.
        entry: the layer.
        weights: its parameters are among them, by name.
        source: all samples.
        numbers: which of them.
        changes: how they change, a row for each; None: not at all.

    Returns:
        (samples, units[[[, depth], height], width]).
    """
    graph = input_graph(entry)
    if not len(numbers):
        return np.empty((0, *graph.input.shape.dimensions), np.float32)
    steps = 0 if changes is None else (changes.shape[1] - AUGMENTATION_WORDS) // POLICY_WORDS
    settings = {"sample_type": source.dtype.name, "augmented": changes is not None, "policy_steps": steps}
    plan = plan_for(device, graph, len(numbers), **settings)
    parameters = DeviceParameters(device, graph, plan.request.parameters)
    parameters.write(weights)
    executor = Executor(device, plan, {"parameters": parameters.buffer})
    Loader(executor).load(IndexedReader([source]), numbers)
    if changes is not None:
        executor.feed("augmentation", changes)
    executor.prepare(parameters.version)
    executor.run("forward", len(numbers))
    values = executor.read_blob(plan.outputs[graph.input.name], len(numbers))
    return values.reshape(len(numbers), *graph.input.shape.dimensions)


def input_graph(entry: Layer) -> Graph:
    """A network of an input layer alone."""
    node = entry()
    return from_nodes(node, node)


def first_numbers(count: int, seed: int) -> Rows:
    """The numbers of ``count`` samples in the order of a training's first epoch."""
    order: Rows = np.random.default_rng([seed, 0]).permutation(count)
    return order


def statistics(source: Source, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The mean and deviation of each unit; of STATISTICS_SAMPLES where the samples do not lie in memory."""
    is_small = source.is_quick and source.bytes <= STATISTICS_BYTES
    some = source if is_small else source[np.sort(first_numbers(len(source), seed)[:STATISTICS_SAMPLES])]
    found: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] = unit_statistics(some)
    return found


def _float32(values: npt.ArrayLike) -> FloatArray:
    return np.asarray(values, np.float32).reshape(-1)
