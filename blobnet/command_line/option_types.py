"""Types of options for argparse; what does not fit is a usage error."""

from __future__ import annotations

import argparse
import importlib
import re
from typing import Any, NoReturn

from blobnet.support.checks import LARGEST_COUNT
from blobnet.support.kinds import spelled

#: Classes that no option can name, since they need a formula or a function.
NOT_OPTIONS = ("Expression", "Custom")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def _fail(rule: str, text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"it must be {rule}, not {text!r}")


def _int(text: str) -> int:
    """An int; -1 of anything else."""
    try:
        return int(text)
    except ValueError:
        return -1


def count(text: str) -> int:
    """An int from 1 to LARGEST_COUNT."""
    value = _int(text)
    if value > LARGEST_COUNT:
        _fail(f"a whole number of at most {LARGEST_COUNT}", text)
    return value if value >= 1 else _fail("a whole number of at least 1", text)


def count_or_none(text: str) -> int:
    """An int of at least 0."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else _fail("a whole number of at least 0", text)


def port(text: str) -> int:
    """The number of a port; 0 is any."""
    value = int(text) if re.fullmatch("[0-9]{1,5}", text) else LARGEST_COUNT
    return value if value < 1 << 16 else _fail("a port, from 0 to 65535", text)


def seed(text: str) -> int:
    """An int from 0 to below 2^63."""
    value = _int(text)
    return value if 0 <= value < 2**63 else _fail("a whole number from 0 to below 2^63", text)


def number(text: str) -> float:
    """A float; its range is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        _fail("a number", text)


def fraction(text: str) -> float:
    """A float above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    return value if 0 < value < 1 else _fail("a number above 0 and below 1", text)


def share(text: str) -> float:
    """A float from 0 to 1."""
    value = number(text)
    return value if 0 <= value <= 1 else _fail("a number from 0 to 1", text)


def names(text: str) -> tuple[str, ...]:
    """``age,height``."""
    found = tuple(name.strip() for name in text.split(","))
    return found if all(found) else _fail("a name, or several such as age,height", text)


def shape(text: str) -> tuple[int, ...]:
    """``1,28,28``: one to three sizes of at least 1."""
    sizes = _sizes(text, ",")
    return sizes if 1 <= len(sizes) <= 3 else _fail("units,height,width such as 1,28,28", text)


def image_size(text: str) -> tuple[int, int]:
    """``64x48``: height and width; ``64`` is both."""
    sizes = _sizes(text, "x")
    return (sizes[0], sizes[-1]) if 1 <= len(sizes) <= 2 else _fail("HEIGHTxWIDTH such as 64x48, or 64 for both", text)


def sizes_of_epochs(text: str) -> dict[int, tuple[int, int]]:
    """``128@0,160@10``: sizes of pictures, and the epochs from which they have them."""
    parts = [part.partition("@") for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", epoch) for _, _, epoch in parts):
        _fail("SIZE@EPOCH for each size, such as 128@0,160@10,224@20", text)
    return {int(epoch): image_size(size) for size, _, epoch in parts}


def _sizes(text: str, separator: str) -> tuple[int, ...]:
    """Positive ints; none if there is anything else."""
    parts = text.lower().split(separator)
    return tuple(int(part) for part in parts) if all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts) else ()


def memory(text: str) -> int:
    """``8GiB``, ``500M``: bytes, in units of 1024."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)(?:i?b)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** _UNITS[match[2].upper()]) if match else 0
    return size if size >= 1 else _fail("a size such as 8GiB or 500M", text)


def named_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """``I=8x64x28x28``: the shape of a name; of a single number ``A=``."""
    name, equals, sizes = text.partition("=")
    parts = sizes.split("x") if sizes else []
    if not (name.isidentifier() and equals and all(re.fullmatch("[1-9][0-9]{0,9}", part) for part in parts)):
        _fail("a name and its shape, such as I=8x64x28x28", text)
    return name, tuple(map(int, parts))


def named_size(text: str) -> tuple[str, int]:
    """``N=8``: a whole number for a name."""
    name, _, size = text.partition("=")
    if not (name.isidentifier() and re.fullmatch("-?[0-9]{1,10}", size)):
        _fail("a name and a whole number, such as N=8", text)
    return name, int(size)


def loss(text: str) -> str | dict[str, str]:
    """``dice``, or for several outputs ``mask=dice,speed=huber``: names of losses.

    NOTE: this imports blobnet.losses, which no command's help does.
    """
    family: Any = importlib.import_module("blobnet.losses").Loss
    kinds = [kind for name, kind in family.kinds.items() if name not in NOT_OPTIONS]
    named = [(spelled(kind.__name__), f" ({', '.join(kind.aliases)})" if kind.aliases else "") for kind in kinds]
    known = ", ".join(name + others for name, others in named)

    def own(name: str) -> str | None:
        kind = family.named(name)
        return spelled(kind.__name__) if kind in kinds else None

    if "=" not in text:
        return own(text) or _fail(f"one of {known}", text)
    found = {name: own(value) for name, value in (_named(part, text) for part in text.split(","))}
    if None in found.values():
        _fail(f"OUTPUT=NAME,OUTPUT=NAME, each name one of {known}", text)
    return {name: str(value) for name, value in found.items()}


def numbers_by_name(text: str) -> dict[str, float]:
    """``mask=1,speed=0.5``."""
    return {name: number(value) for name, value in (_named(part, text) for part in text.split(","))}


def _named(part: str, text: str) -> tuple[str, str]:
    name, equals, value = (item.strip() for item in part.partition("="))
    return (name, value) if name and equals and value else _fail("OUTPUT=... for each output, parted by commas", text)
