"""Augmentations in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from blobnet.augment.affine import RandomAffine
from blobnet.augment.base import Augmentation
from blobnet.augment.colour import Brightness, Contrast, Saturation
from blobnet.augment.crop import RandomCrop, RandomResizedCrop
from blobnet.augment.erasing import Erasing
from blobnet.augment.flip import Flip
from blobnet.augment.mixtures import CutMix, Mixup
from blobnet.errors import OptionError, near_matches

#: The words of ``augment="crop, flip"``; a number after ``=`` is the first argument.
WORDS: Mapping[str, type[Augmentation]] = {
    "crop": RandomCrop,
    "resize": RandomResizedCrop,
    "flip": Flip,
    "rotate": RandomAffine,
    "brightness": Brightness,
    "contrast": Contrast,
    "saturation": Saturation,
    "erase": Erasing,
    "mixup": Mixup,
    "cutmix": CutMix,
}
#: The words whose first argument is a number.
_WITH_NUMBER = ("crop", "rotate", "brightness", "contrast", "saturation", "erase", "mixup", "cutmix")


def augmentations_of(value: Any, subject: str = "augment") -> tuple[Augmentation, ...]:
    """A list of augmentations, one alone, or their words: ``"crop=3, flip"``.

    Raises:
        OptionError: it is none of these, or erases twice.
    """
    if isinstance(value, Augmentation):
        value = [value]
    if isinstance(value, str):
        value = [_parsed(word.strip(), subject) for word in value.split(",")]
    items = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(item, Augmentation) for item in items):
        rule = "it must be a list of augmentations, or of their words in a string"
        hint = "for example [RandomCrop(2), Flip()] of blobnet.augment, or 'crop=2, flip'."
        raise OptionError(subject, rule, augment=value, hint=hint)
    if sum(isinstance(item, Erasing) for item in items) > 1:
        raise OptionError(subject, "there must be at most one Erasing", augment=", ".join(map(str, items)))
    return tuple(items)


def _parsed(text: str, subject: str) -> Augmentation:
    match = re.fullmatch(r"([^=]*?)\s*(?:=\s*(\S+))?", text)
    word, number = match.groups() if match else (text, None)
    if word not in WORDS:
        hint = near_matches(word, list(WORDS))
        raise OptionError(subject, "every word must be that of an augmentation", word=repr(word), hint=hint)
    build: Any = WORDS[word]
    if number is None:
        augmentation: Augmentation = build()
        return augmentation
    if word not in _WITH_NUMBER:
        raise OptionError(subject, f"{word} takes no number", augment=repr(text))
    try:
        value = int(number) if word == "crop" else float(number)
    except ValueError:
        kind = "an int" if word == "crop" else "a number"
        raise OptionError(subject, f"behind {word}= there must be {kind}", augment=repr(text)) from None
    parsed: Augmentation = build(value)
    return parsed
