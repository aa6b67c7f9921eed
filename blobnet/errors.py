"""Every error that blobnet raises on purpose, and its warnings.

A message has one form: ``<subject>: <rule>. Received a=1, b=2. Hint: <what to do>``; the command line prints it as it
is, without a traceback.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

__all__ = [
    "ArgumentError",
    "BlobnetError",
    "BlobnetWarning",
    "BuildError",
    "ContractionError",
    "DataError",
    "DeviceError",
    "FileError",
    "KernelError",
    "OptionError",
    "OutOfMemoryError",
    "PlanError",
    "PromiseError",
    "ShapeError",
    "TrainingError",
]

_Error = TypeVar("_Error", bound="BlobnetError")
#: When this process began to read blobnet's files, in nanoseconds: every other one has need of this one first.
FIRST_READ = time.time_ns()
#: Characters of a value that a message shows.
_MAX_SHOWN = 2000
#: The word before the advice in a message.
_HINT = " Hint: "


class BlobnetError(Exception):
    """Base of all of blobnet's errors.

    Args:
        subject: what failed: a layer (``conv1 (Conv2D)``), an option (``--device``), a file.
        rule: what must hold, as a sentence without its full stop.
        hint: what the reader can do about it.
        received: the values that broke the rule, by name; the first may have none but ``received``, which is not said.
    """

    def __init__(self, subject: str, rule: str, *, hint: str | None = None, **received: object) -> None:
        super().__init__(printable(_message(subject, rule, hint, received)))

    def with_hint(self: _Error, hint: str) -> _Error:
        """The same error with other advice."""
        return _rebuild(type(self), f"{str(self).partition(_HINT)[0]}{_HINT}{printable(hint)}")

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between processes (data loaders, test workers) as the message that they carry.
        return _rebuild, (type(self), str(self))


def printable(text: str, kept: str = "\n\t") -> str:
    """Text that no terminal takes for a command: what of it is not printed, nor ``kept``, is written as an escape."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)


class Lines(str):
    """Text whose lines a message keeps, however many: a compiler's log."""


def _on_a_line(value: object) -> str:
    """Return a value as messages show it: on one line and not too long, since it may be what a file says."""
    text = str(value)
    if isinstance(value, BlobnetError | Lines):
        return text
    return printable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ...", kept="")


def _message(subject: str, rule: str, hint: str | None, received: Mapping[str, object]) -> str:
    message = f"{_on_a_line(subject)}: {rule}."
    if received:
        values = ", ".join(f"{name}={_on_a_line(value)}" for name, value in received.items())
        message += f" Received {values.removeprefix('received=')}."
    return f"{message}{_HINT}{hint}" if hint else message


def _rebuild(kind: type[_Error], message: str) -> _Error:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error


class OptionError(BlobnetError, ValueError):
    """A hyperparameter or an option has a value that is not allowed."""


class ArgumentError(OptionError, TypeError):
    """A call has arguments that there are not."""


class ContractionError(BlobnetError, ValueError):
    """A contraction's text, or the sizes given to it, make no sense."""

    @classmethod
    def at(
        cls, text: str, start: int, end: int, rule: str, *, hint: str | None = None, **received: object
    ) -> ContractionError:
        """The error of a place: its message ends in the line, with carets under characters ``start`` to ``end``."""
        first = text.rfind("\n", 0, start) + 1
        line, column = text[first:].partition("\n")[0].expandtabs(1), start - first
        number = text.count("\n", 0, start) + 1
        error = cls(f"contraction, line {number}, column {column + 1}", rule, hint=hint, **received)
        # Of a long line, what is around the place.
        cut = max(0, min(column - 50, len(line) - 100))
        shown = "".join(letter if letter.isprintable() else "?" for letter in line[cut : cut + 100])
        carets = "^" * max(1, min(end - start, len(shown) - (column - cut)))
        error.args = (f"{error}\n    {shown}\n    {' ' * (column - cut)}{carets}",)
        return error


class ShapeError(BlobnetError, ValueError):
    """Shapes do not fit together."""


class DataError(BlobnetError, ValueError):
    """Arrays or data files hold something that cannot be trained on."""


class FileError(BlobnetError, OSError):
    """A file cannot be read or written, or is not what it should be."""


class KernelError(BlobnetError):
    """A kernel's header, macros and call do not agree: a mistake in blobnet or in a layer, not in its use."""


class BuildError(KernelError):
    """A driver refused to build a kernel."""


class DeviceError(BlobnetError):
    """No OpenCL device, an unknown one, or one that fails."""


class OutOfMemoryError(DeviceError):
    """A device has no room for a buffer, or for what a launch needs."""


class PlanError(BlobnetError):
    """A model cannot be planned, or its plan does not fit the device."""


class PromiseError(BlobnetError):
    """A launch wrote outside the data cells of the blobs that it may write (debug mode)."""


class TrainingError(BlobnetError):
    """Training cannot go on: the loss is not finite."""


class BlobnetWarning(UserWarning):
    """Something is not as it should be, and blobnet goes on without it."""


def add_sentence(error: BaseException, sentence: str) -> None:
    """Has an error say one sentence more; an error that is not blobnet's as a note, which Python 3.10 does not have."""
    if isinstance(error, BlobnetError):
        error.args = (f"{str(error).rstrip('.')}. {sentence}",)
    elif hasattr(error, "add_note"):
        error.add_note(sentence)


def warn(subject: str, rule: str, *, hint: str | None = None, **received: object) -> None:
    """Warns in the form of the errors, of the line outside blobnet that led here: see BlobnetError."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("blobnet", "functools"):
        level, frame = level + 1, frame.f_back
    warnings.warn(BlobnetWarning(printable(_message(subject, rule, hint, received))), stacklevel=level)


def file_error(error: OSError) -> FileError:
    """Return what the system says of a file in the form of blobnet's errors."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return FileError(os.fsdecode(error.filename), f"it cannot be read or written: {reason}")
    return FileError("output", f"it cannot be written: {reason}", hint="stdout or stderr is full, or was closed.")


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Turn the system's errors about files, such as a folder that this user may not enter, into FileError."""
    try:
        yield
    except BlobnetError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise file_error(error) from error


def first_few(items: Iterable[object], most: int) -> str:
    """The first items, and how many there are besides them: ``a, b and 3 more``."""
    names = [str(item) for item in items]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(count: int, noun: str) -> str:
    """``1 epoch``, ``2 epochs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def extra(name: str) -> str:
    """How to install what an optional part of blobnet needs: pip finds blobnet installed, and adds to it."""
    return f'pip install "blobnet[{name}]" (adds to the blobnet that is installed; it is on no package index)'


def near_matches(name: str, known: list[str]) -> str:
    """A hint: the known names that look like ``name``, or all of them if none does."""
    return nearest(name, known) or "known names: " + ", ".join(sorted(known)) + "."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint: the known names that look like ``name``, if there are any."""
    import difflib

    # NOTE: without the dashes of options, which all of them have in common.
    bare = {item.lstrip("-"): item for item in known}
    near = difflib.get_close_matches(name.lstrip("-"), bare, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(bare[match]) for match in near)}?" if near else None
