"""Names and numbers of classes: files that list them, labels of tables, and names that mean the same."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from blobnet.errors import DataError, FileError, first_few, warn

#: Files that name the classes in the order of their numbers: a name a line, or JSON with the number of each name.
CLASS_FILE, CLASS_INDEX = "classes.txt", "class_index.json"
#: Digits of a label that is a number, and not a name of digits.
_MAX_DIGITS = 18
_MAX_NAMED = 5


def class_file(folder: Path) -> Path:
    """The file that names the classes, if there is one."""
    return next((path for name in (CLASS_FILE, CLASS_INDEX) if (path := folder / name).is_file()), folder / CLASS_FILE)


def listed_classes(folder: Path) -> list[str]:
    """The names in the file for them; empty if there is none.

    Raises:
        FileError: it cannot be read.
        DataError: it names a class twice, or none.
    """
    path = class_file(folder)
    if not path.is_file():
        return []
    try:
        text = path.read_text("utf-8-sig")
        is_index = path.name == CLASS_INDEX
        names = _indexed(json.loads(text)) if is_index else [line.strip() for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(str(path), "the file must be readable text", reason=error) from error
    if not names or len(set(names)) < len(names):
        raise DataError(str(path), "it must name each class once", names=names)
    return names


def _indexed(index: Any) -> list[str]:
    """The names in an index of classes, in the order of their numbers.

    Raises:
        ValueError: it does not number names from 0 on.
    """
    found: dict[int, Any] = {}
    for key, value in index.items() if isinstance(index, dict) else ():
        number, name = (value, key) if isinstance(value, int) else (int(key) if key.isdecimal() else -1, value)
        found[number] = name[0] if isinstance(name, list) and name else name
    names = [found.get(number) for number in range(len(found))]
    if not found or len(found) < len(index) or not all(isinstance(name, str) for name in names):
        raise ValueError('it must number names from 0 on, as {"cat": 0, "dog": 1} or {"0": "cat", "1": "dog"} do')
    return [str(name) for name in names]


def note_alike(subject: str, names: Iterable[str]) -> None:
    """Warns of classes whose names differ in case, spaces, dashes or underscores alone."""
    alike = defaultdict(list)
    for name in names:
        alike[re.sub(r"[\s_-]+", "", name).casefold()].append(name)
    found = [" and ".join(map(repr, same)) for same in alike.values() if len(same) > 1]
    if found:
        hint = "if they are one class, give them one name."
        warn(subject, f"{first_few(found, _MAX_NAMED)} are classes of their own", hint=hint)


def numbered_labels(
    path: Path, labels: set[str], trained: set[str], listed: Sequence[str]
) -> tuple[list[str], dict[str, int]]:
    """The names of the classes of a table, and the number of each label; ``listed`` are classes, if a file names them.

    Raises:
        DataError: a label is of no class that is listed, or trained.
    """
    are_numbers = all(label.isdecimal() and len(label) <= _MAX_DIGITS for label in labels)
    if listed and labels <= set(listed):
        return [*listed], {name: number for number, name in enumerate(listed)}
    if listed and are_numbers and all(int(label) < len(listed) for label in labels):
        return [*listed], {label: int(label) for label in labels}
    if listed:
        rule = f"every label must stand in {class_file(path.parent).name}, or be a class's number there, from 0 on"
        wrong = next(label for label in sorted(labels) if label not in listed)
        raise DataError(str(path), rule, label=wrong, names=listed)
    if labels != trained:
        rule = "every class of the other splits must be trained"
        raise DataError(str(path), rule, label=min(labels - trained), classes=sorted(trained))
    note_alike(str(path), sorted(labels))
    names = sorted(labels, key=(lambda label: (int(label), label)) if are_numbers else str)
    return names, {name: number for number, name in enumerate(names)}


def numbers_in(names: Sequence[str], known: Sequence[str]) -> list[int] | None:
    """The numbers that classes of these names have among ``known`` ones; None if some are not there.

    Classes that are called by numbers, and are not known by these as names, keep them: ``1`` and ``2`` are the second
    and the third.
    """
    if set(names) <= set(known):
        return [known.index(name) for name in names]
    numbers = [int(name) if name.isdecimal() and len(name) <= _MAX_DIGITS else -1 for name in names]
    are_numbers = [str(number) for number in numbers] == list(names) and max(numbers) < len(known)
    return numbers if are_numbers else None
