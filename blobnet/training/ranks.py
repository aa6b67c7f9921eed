"""The check that all ranks of a training were started for the same."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from blobnet.datasets.source import runs
from blobnet.execution.inference import LabelledData
from blobnet.memory.blob import FloatArray
from blobnet.parallel.world import check_alike, check_room, check_same
from blobnet.training.epoch import TrainingData
from blobnet.training.settings import Interrupted
from blobnet.training.training_step import TrainingStep
from blobnet.version import __version__

#: Samples of files that ranks compare before they train, and samples and labels that are read at a time.
_COMPARED = 64


def check_ranks(
    step: TrainingStep, weights: Mapping[str, FloatArray], data: TrainingData, interrupted: Interrupted | None
) -> None:
    """Raises OptionError where other ranks were started to train something else; warns of unlike devices.

    Args:
        step: of this rank.
        weights: that it begins with.
        data: that it was given.
        interrupted: the training that it goes on with.
    """
    validation, of_samples = data.validation, [own for own in data.sample_weights or () if own is not None]
    state = interrupted.state if interrupted else None
    settings: dict[str, Any] = {
        option.called or name: value for name, value, _, option in step.settings.described(step.graph)
    }
    check_same(
        step.world,
        version=__version__,
        model=_digest(repr(step.graph.description()).encode()),
        weights=_digest(b"".join(values.tobytes() for values in weights.values())),
        samples=data.train.count,
        data=digest_of(data.train),
        validation=None if validation is None else (validation.count, digest_of(validation)),
        sample_weights=_digest(b"".join(own.tobytes() for own in of_samples)) if of_samples else None,
        **settings,
        memory_parts=step.parts,
        metrics=[sorted(own) for own in data.metrics],
        resumed_from=state and (state.epoch, state.step, _digest(repr(state.settings).encode())),
    )
    check_alike(step.world, step.device.info)
    check_room(step.world, step.device.info, step.bytes)


def digest_of(data: LabelledData) -> str:
    """Return a digest of all labels, of samples in memory, of some in files, and of a stream's first batch.

    What a device keeps of files is compared when it is read (Loader.keep).
    """
    digest, count = hashlib.sha256(), data.count or 0
    here_and_there = np.unique(np.linspace(0, max(0, count - 1), _COMPARED).astype(np.int64))
    for own in data.sources:
        for rows in runs(count, _COMPARED) if own.is_quick else [here_and_there]:
            digest.update(np.asarray(own[rows]).tobytes())
    for labels in data.labels or ():
        for rows in runs(count, _COMPARED):
            digest.update(np.asarray(labels[rows]).tobytes())
    if data.stream is not None and data.stream.first is not None:
        for values in itertools.chain(*data.stream.first):
            digest.update(values.tobytes())
    return digest.hexdigest()[:12]


def _digest(values: bytes) -> str:
    return hashlib.sha256(values).hexdigest()[:12]
