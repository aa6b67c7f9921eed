"""Pretrained weights by name: a file of the Hugging Face hub, ``hf:OWNER/NAME``, or a safetensors file here.

Beside the weights there may be a ``config.json`` as timm writes it: what its ``pretrained_cfg`` says of samples comes
along.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blobnet.errors import FileError, OptionError, warn
from blobnet.files import atomic
from blobnet.files.hub import answering
from blobnet.interop.safetensors_files import check_beginning

_NAME = re.compile(r"hf:(?P<repository>[^/@]+/[^/@]+)(?:/(?P<file>[^@]+))?(?:@(?P<revision>.+))?")
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
#: Numbers of a config are smaller, so that float32 holds 255 times as much.
_LIMIT = 1e30
#: What a missing file means here.
_MISSING = (
    f"the repository must have the file {_WEIGHTS}; weights are not read from pickles",
    "hf:OWNER/NAME/FILE.safetensors names another file.",
)


@dataclass(frozen=True)
class Pretrained:
    """A safetensors file, with what is known of it.

    Attributes:
        text: what the user wrote.
        path: the file.
        revision: the commit of the hub's repository; None for a file here.
        sha256: of the file, in hexadecimal.
        config: what its config.json says, untrusted; empty without one.
    """

    text: str
    path: Path
    revision: str | None
    sha256: str
    config: Mapping[str, Any]

    @cached_property
    def record(self) -> dict[str, Any]:
        """What a model that is trained from it remembers, plain data."""
        found = {"name": self.text, "file": self.path.name, "revision": self.revision, "sha256": self.sha256}
        licence = self.config.get("license")
        return found | ({"license": licence} if isinstance(licence, str) else {})

    @property
    def offers(self) -> dict[str, Any]:
        """The arguments of a network that the config says: input_shape, classes, class_names."""
        shape, classes, names = self.config.get("input_size"), self.config.get("num_classes"), self._class_names
        found: dict[str, Any] = {}
        if shape is not None:
            self._check("input_size", shape, _are_numbers(shape, int, 3))
            found["input_shape"] = tuple(shape)
        if classes:  # 0 is a network without its last layer.
            self._check("num_classes", classes, _are_numbers([classes], int, 1))
            found["classes"] = classes
            found |= {"class_names": names} if len(names) == classes else {}
        return found

    def normalization(self, units: int) -> tuple[list[float], list[float]] | None:
        """What to subtract from samples from 0 to 255, and to divide by; None if the config does not say it."""
        mean, deviation = self.config.get("mean"), self.config.get("std")
        if mean is None or deviation is None:
            return None
        self._check("mean", mean, isinstance(mean, list) and all(map(_is_number, mean)))
        self._check("std", deviation, _are_numbers(deviation, float, len(mean)))
        if len(mean) != units:
            rule = f"mean and std in its {_CONFIG} must have a number for each unit of the network's input"
            raise FileError(self.text, rule, mean=mean, std=deviation, units=units)
        return [255.0 * value for value in mean], [255.0 * value for value in deviation]

    @property
    def _class_names(self) -> tuple[str, ...]:
        names = self.config.get("label_names") or ()
        self._check(
            "label_names", names, isinstance(names, list | tuple) and all(isinstance(one, str) for one in names)
        )
        return tuple(names)

    def _check(self, name: str, value: object, holds: bool) -> None:
        if not holds:
            rule = f"{name} in its {_CONFIG} must be what timm writes there"
            raise FileError(self.text, rule, **{name: ascii(value)[:80]}, hint="a path names the weights alone.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LIMIT


def _are_numbers(values: object, kind: type, count: int) -> bool:
    """Return True for so many numbers above 0, whole ones if ``kind`` is int."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(_is_number(value) and value > 0 and (kind is float or isinstance(value, int)) for value in values)


def find(text: str) -> Pretrained:
    """The file that ``text`` names: ``hf:OWNER/NAME``, also with ``/FILE.safetensors`` and ``@REVISION``; or a path.

    Raises:
        FileError: there is no such file or repository, it cannot be fetched, is damaged, or a pickle.
        OptionError: the name is none, or the package huggingface_hub is missing.
    """
    text = atomic.subject_of(text)
    path: Path
    revision: str | None
    said: Path | None
    if not text.startswith("hf:"):
        path, revision = Path(text).expanduser(), None
        beside = path.with_name(_CONFIG)
        said = beside if beside.is_file() else None
    else:
        path, revision, said = _fetched(text)
    check_beginning(path)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 22):
            digest.update(piece)
    kept_as = path.resolve().name  # The cache calls a large file by its checksum.
    if re.fullmatch("[0-9a-f]{64}", kept_as) and kept_as != digest.hexdigest():
        rule, hint = (
            "the file in the cache must be what the hub has (SHA-256)",
            f"remove {path.resolve()}: it is damaged.",
        )
        raise FileError(text, rule, wanted=kept_as, found=digest.hexdigest(), hint=hint)
    return Pretrained(text, path, revision, digest.hexdigest(), {} if said is None else _config(text, said))


def _fetched(text: str) -> tuple[Path, str, Path | None]:
    """The file of the hub, the commit that it is of, and its config.json if there is one."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise OptionError("pretrained", "it must be hf:OWNER/NAME, or a path of a .safetensors file", received=text)
    name = match["file"] or _WEIGHTS
    if not name.endswith(".safetensors"):
        rule = "weights are read from .safetensors files alone: pickles can run any code"
        raise FileError(text, rule, file=name)
    repository = match["repository"]
    with answering(text, _MISSING) as hub:
        path = Path(hub.hf_hub_download(repository, name, revision=match["revision"]))
        revision = path.parts[len(path.parts) - len(Path(name).parts) - 1]
        try:
            return path, revision, Path(hub.hf_hub_download(repository, _CONFIG, revision=revision))
        except hub.errors.EntryNotFoundError as error:
            # Without a network the cache may still know that there is none.
            is_known = hub.try_to_load_from_cache(repository, _CONFIG, revision=revision) is not None
            if isinstance(error, hub.errors.LocalEntryNotFoundError) and not is_known:
                raise
            return path, revision, None


def _config(text: str, path: Path) -> dict[str, Any]:
    """What a config.json says of samples and classes, as timm reads it."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(1 << 24))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(text, f"its {_CONFIG} must be JSON", reason=error) from error
    inner = said.get("pretrained_cfg", said) if isinstance(said, dict) else None
    if not isinstance(inner, dict):
        raise FileError(text, f"its {_CONFIG} must be an object, and so must pretrained_cfg in it")
    return inner | {name: said[name] for name in ("num_classes", "label_names") if name in said}


def note_missing(found: Pretrained) -> None:
    """Warns that nothing says how samples are normalised."""
    rule = f"without {_CONFIG} nothing says how samples are to be normalised, so they are not"
    warn(found.text, rule, hint="model.set_normalization(mean, deviation); on the command line the data say it.")
