"""Arrays by name in a user's own file: those of networks with several inputs and outputs (docs/graphs.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import classes_of_one_hot
from blobnet.datasets.dataset import IGNORED_LABEL, held_out_rows, sampled_statistics
from blobnet.datasets.source import AsSamples, Source
from blobnet.datasets.split_names import SPLIT_NAMES
from blobnet.datasets.user_data import KEYS, Array, Arrays, class_names_of, has_arrays, read_arrays
from blobnet.errors import DataError

#: The endings of the names of a split's arrays.
_ENDINGS = {f"_{name}": {"validation": "val"}.get(split, split) for split, own in SPLIT_NAMES.items() for name in own}
#: The names of the splits in errors.
_SPLITS = {"train": "", "val": " (validation)", "test": " (test)"}


@dataclass(frozen=True, eq=False)
class NamedSplit:
    """Samples for each input of a network, and labels for each of its outputs, by their names."""

    x: Mapping[str, Array]
    y: Mapping[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.x.values())))

    def split_validation(self, fraction: float, seed: int) -> tuple[NamedSplit, NamedSplit]:
        """Return two splits, drawn by ``seed``: the first without, the second with ``fraction`` of the samples.

        Raises:
            OptionError: the fraction leaves one of the two without samples.
        """
        kept, held_out = (
            NamedSplit(*({name: array[rows] for name, array in arrays.items()} for arrays in (self.x, self.y)))
            for rows in map(np.sort, held_out_rows(len(self), fraction, seed))
        )
        return kept, held_out


@dataclass(frozen=True, eq=False, repr=False)
class NamedDataset:
    """The data set of a network with several inputs or outputs, as :class:`Dataset`."""

    name: str
    train: NamedSplit
    test: NamedSplit | None
    validation: NamedSplit | None = None

    def __repr__(self) -> str:
        count = " + ".join(str(len(split)) for split in (self.train, self.validation, self.test) if split is not None)
        samples, labels = (
            ", ".join(f"{name} {tuple(array.shape[1:]) or ''}".strip() for name, array in arrays.items())
            for arrays in (self.train.x, self.train.y)
        )
        return f"{self.name}: {count} samples of {samples}; labels {labels}"

    def statistics(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Mean and standard deviation of each unit (channel) of the training split, for each input."""
        return {name: sampled_statistics(array) for name, array in self.train.x.items()}


@dataclass(frozen=True, eq=False)
class NamedData:
    """Arrays of a file by name, of which the inputs and outputs of a network take theirs.

    Attributes:
        name: of the data set.
        subject: what errors call it.
        parts: the arrays of each split, by their names without its ending.
        class_names: of the classes of a single output; empty if there are none.
    """

    name: str
    subject: str
    parts: Mapping[str, Arrays]
    class_names: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a sample of each array."""
        return {name: tuple(array.shape[1:]) for name, array in self.parts["train"].items()}

    @property
    def classes(self) -> dict[str, int]:
        """The number of classes of each array of whole numbers, from 0 on; samples and negative numbers have none."""
        found = {}
        for name, array in self.parts["train"].items():
            if array.dtype.kind in "iu" and len(array.shape) <= 3 and 0 not in array.shape:
                values = np.asarray(array)
                counted = values[values != IGNORED_LABEL] if values.ndim > 1 else values
                if counted.size and counted.min() >= 0:
                    found[name] = int(counted.max()) + 1
        return found

    def dataset(self, inputs: Iterable[str], outputs: Iterable[str]) -> NamedDataset:
        """The arrays of a network's inputs and outputs; a single input may be called ``x``, a single output ``y``.

        Raises:
            DataError: an array is missing, or those of a split hold different numbers of samples.
        """
        train, test, validation = (self._split(part, [*inputs], [*outputs]) for part in ("train", "test", "val"))
        assert train is not None
        for other in (test, validation):
            for name, array in ({**other.x, **other.y} if other else {}).items():
                same = {**train.x, **train.y}[name]
                if array.shape[1:] != same.shape[1:] or (array.dtype.kind == "f") != (same.dtype.kind == "f"):
                    rule = "the arrays of all splits must have samples of the same kind"
                    one, two = (f"{each.dtype} {tuple(each.shape)}" for each in (same, array))
                    raise DataError(f"{self.subject}, {name}", rule, train=one, other=two)
        return NamedDataset(self.name, train, test, validation)

    def samples(self, inputs: Iterable[str]) -> dict[str, Array]:
        """The arrays of a network's inputs, to test with, else to train on.

        Raises:
            DataError: as :meth:`dataset`.
        """
        split = self._split("test", [*inputs], []) or self._split("train", [*inputs], [])
        assert split is not None
        return {**split.x}

    def _split(self, part: str, inputs: Sequence[str], outputs: Sequence[str]) -> NamedSplit | None:
        """The arrays of a split; None if the file has nothing of it."""
        arrays, names, missing = self.parts.get(part, {}), (inputs, outputs), []
        found: tuple[Arrays, Arrays] = {}, {}
        for own, to, alias in zip(names, found, "xy", strict=True):
            for name in own:
                key = alias if name not in arrays and len(own) == 1 else name
                if key in arrays:
                    to[name] = arrays[key]
                else:
                    missing.append(name)
        if part != "train" and len(missing) == sum(map(len, names)):
            return None
        where = f"{self.subject}{_SPLITS[part]}"
        if missing:
            rule = "there must be an array for each input and each output of the model, of its name"
            ends = {side: ", ".join(own) for side, own in zip(("inputs", "outputs"), names, strict=True) if own}
            hint = "a single input may be called x, and a single output y."
            if part != "train":
                endings = " or ".join(ending for ending, to in _ENDINGS.items() if to == part)
                hint = f"a name that ends in {endings} is of this split."
            known = ", ".join(arrays) or "nothing"
            raise DataError(where, rule, missing=", ".join(missing), found=known, **ends, hint=hint)
        counts = {name: len(array) if array.shape else 0 for own in found for name, array in own.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(where, "all arrays must have the same number of samples", samples=listed)
        if 0 in counts.values():
            raise DataError(where, "there must be at least one sample", arrays=", ".join(counts))
        samples, labels = found
        return NamedSplit(
            {name: _as_samples(array) for name, array in samples.items()},
            {name: classes_of_one_hot(array) for name, array in labels.items()},
        )


def read_named(path: Path) -> NamedData | None:
    """The arrays of a .npz or an HDF5 file, or of a folder of .npy files, by name.

    ``image_test`` is the array ``image`` of the split to test with, ``image_val`` (or ``valid``, ``validation``) that
    to validate with.

    Returns:
        None where the file is none of these, or holds no arrays but those of :func:`blobnet.datasets.load`.

    Raises:
        FileError: the file cannot be read.
    """
    if not path.exists() or not has_arrays(path):
        return None
    _, found = read_arrays(path, ("class_names",))
    if not set(found) - set(KEYS) or {"x", "y"} <= set(found) or {"x_train", "y_train"} <= set(found):
        return None
    arrays, _ = read_arrays(path, None)
    if not arrays:
        return None
    names = arrays.pop("class_names", None)
    parts: dict[str, Arrays] = {"train": {}}
    for key, array in arrays.items():
        name, part = _named_part(key, arrays)
        parts.setdefault(part, {})[name] = array
    title = path.resolve().name if path.is_dir() else path.stem
    return NamedData(title, str(path), parts, () if names is None else class_names_of(path, np.asarray(names)))


def _named_part(key: str, arrays: Arrays) -> tuple[str, str]:
    """The name and the split of an array; an ending is one only where there is an array to train on as well."""
    for ending, part in _ENDINGS.items():
        name = key.removesuffix(ending)
        if name and name != key and (part == "train" or name in arrays or f"{name}_train" in arrays):
            return name, part
    return key, "train"


def _as_samples(array: Array) -> Array:
    return AsSamples(array) if isinstance(array, Source) else array
