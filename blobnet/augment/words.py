"""Augmentations in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from blobnet.augment.base import Augmentation
from blobnet.augment.erasing import Erasing
from blobnet.errors import OptionError, near_matches
from blobnet.support.kinds import spelled


def augmentations_of(value: Any, subject: str = "augment") -> tuple[Augmentation, ...]:
    """A list of augmentations, one alone, or their words: ``"crop=3, flip"``.

    Raises:
        OptionError: it is none of these, erases twice, or has two policies.
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
    received = ", ".join(map(str, items))
    if sum(isinstance(item, Erasing) for item in items) > 1:
        raise OptionError(subject, "there must be at most one Erasing", augment=received)
    if sum(item.policy_steps > 0 for item in items) > 1:
        hint = "RandAugment(3) does three changes."
        raise OptionError(subject, "there must be at most one policy", augment=received, hint=hint)
    return tuple(items)


def _parsed(text: str, subject: str) -> Augmentation:
    match = re.fullmatch(r"([^=]*?)\s*(?:=\s*(\S+))?", text)
    word, number = match.groups() if match else (text, None)
    kind = Augmentation.named(word)
    if kind is None:
        known = [name for own in Augmentation.kinds.values() for name in (own.aliases or (spelled(own.__name__),))]
        hint = near_matches(word, known)
        raise OptionError(subject, "every word must be that of an augmentation", word=repr(word), hint=hint)
    build: Any = kind
    if number is None:
        augmentation: Augmentation = build()
        return augmentation
    first = next(iter(fields(kind)), None)
    wanted = type(first.default) if first else None
    if wanted not in (int, float):
        raise OptionError(subject, f"{word} takes no number", augment=repr(text))
    try:
        value = wanted(number)
    except ValueError:
        what = "an int" if wanted is int else "a number"
        raise OptionError(subject, f"after {word}= there must be {what}", augment=repr(text)) from None
    parsed: Augmentation = build(value)
    return parsed
