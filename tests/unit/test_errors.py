"""The form of blobnet's errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from blobnet import errors
from blobnet.errors import (
    BlobnetError,
    BlobnetWarning,
    ContractionError,
    DataError,
    OptionError,
    extra,
    near_matches,
    warn,
)

KINDS = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, BlobnetError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
class TestMessage:
    def test_rule_alone(self, kind: type[BlobnetError]) -> None:
        assert str(kind("--device", "the name must be known")) == "--device: the name must be known."

    def test_received(self, kind: type[BlobnetError]) -> None:
        error = kind("conv1 (Conv2D)", "stride must be at least 1", stride=0, input=(3, 8, 8))
        assert str(error) == "conv1 (Conv2D): stride must be at least 1. Received stride=0, input=(3, 8, 8)."

    def test_hint(self, kind: type[BlobnetError]) -> None:
        assert str(kind("a.h5", "the file must exist", hint="try b.h5.")) == (
            "a.h5: the file must exist. Hint: try b.h5."
        )

    def test_everything(self, kind: type[BlobnetError]) -> None:
        error = kind("Dense", "units must be at least 1", hint="give 1.", units=None)
        assert str(error) == "Dense: units must be at least 1. Received units=None. Hint: give 1."
        assert error.args == (str(error),)

    def test_other_advice(self, kind: type[BlobnetError]) -> None:
        for hint in ("give 1.", None):
            error = kind("Dense", "units must be at least 1", units=0, hint=hint).with_hint("--units 1.")
            assert type(error) is kind
            assert str(error) == "Dense: units must be at least 1. Received units=0. Hint: --units 1."

    def test_pickles(self, kind: type[BlobnetError]) -> None:
        """Errors cross process boundaries (data loaders, parallel test runs)."""
        error = kind("Dense", "units must be at least 1", units=0)
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is kind
        assert str(copied) == str(error)


def test_builtin_bases() -> None:
    """Callers may catch what Python would have raised."""
    for name in ("OptionError", "ShapeError", "DataError"):
        assert issubclass(getattr(errors, name), ValueError)
    assert issubclass(errors.FileError, OSError)
    assert issubclass(errors.BuildError, errors.KernelError)
    assert len(KINDS) >= 10


def test_warnings_name_the_line_outside_of_blobnet() -> None:
    scope: dict[str, Any] = {"__name__": "blobnet.model", "warn": errors.warn}
    exec("def fit(): deeper()\ndef deeper(): warn('x', 'it should be small', it=3)", scope)
    with pytest.warns(errors.BlobnetWarning, match=r"^x: it should be small\. Received it=3\.$") as caught:
        scope["fit"]()
    assert [warning.filename for warning in caught] == [__file__]


def test_extras_say_that_blobnet_is_on_no_index() -> None:
    wanted = 'pip install "blobnet[onnx]" (adds to the blobnet that is installed; it is on no package index)'
    assert extra("onnx") == wanted


def test_near_matches() -> None:
    known = ["Conv2D", "Conv1D", "Dense", "Dropout"]
    assert near_matches("Dens", known) == "did you mean 'Dense'?"
    assert near_matches("Conv3D", known) == "did you mean 'Conv2D' or 'Conv1D'?"
    assert near_matches("xyz", known) == "known names: Conv1D, Conv2D, Dense, Dropout."
    assert len(near_matches("Conv", ["Conv" + letter for letter in "abcdef"]).split(" or ")) == 3
    options = ["--top", "--npz", "--json", "--help"]
    assert near_matches("--topp", options) == "did you mean '--top'?"
    assert near_matches("--input-shape", options) == "known names: --help, --json, --npz, --top."
    assert known == ["Conv2D", "Conv1D", "Dense", "Dropout"]


@pytest.mark.parametrize(("count", "expected"), [(0, ""), (1, "0"), (3, "0, 1, 2"), (5, "0, 1, 2 and 2 more")])
def test_first_few(count: int, expected: str) -> None:
    assert errors.first_few(range(count), 3) == expected


@pytest.mark.parametrize(
    ("text", "shown", "line"),
    [
        ("\x1b[2J\x07", r"\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\u202eb\u200f", r"a\u202eb\u200f", r"a\u202eb\u200f"),
        ("gr\xfcn \udcff", "gr\xfcn \\udcff", "gr\xfcn \\udcff"),
        ("two\nlines\tof\rone", "two\nlines\tof\\rone", r"two\nlines\tof\rone"),
    ],
)
def test_no_terminal_takes_what_is_said_for_a_command(text: str, shown: str, line: str) -> None:
    """What a file may say, a name and a value, is on one line; rules and hints of our own have lines."""
    for value in (text, ValueError(text)):
        found = str(OptionError(text, text, received=value, hint=text))
        assert found == f"{line}: {shown}. Received {line}. Hint: {shown}"
    with pytest.warns(BlobnetWarning) as caught:
        warn("it", "must be so", received=text)
    assert str(caught[0].message) == f"it: must be so. Received {line}."
    place = ContractionError.at(f"O = {text.partition(chr(10))[0]} +", 4, 5, "it must be a sign")
    assert str(place).replace("\n", "").isprintable()


def test_values_are_cut_and_errors_within_errors_keep_their_lines() -> None:
    assert str(DataError("a", "b", row="x" * 10**6)) == f"a: b. Received row={'x' * 2000} ...."
    inner = ContractionError.at("O[n] =\t+(A[m]", 0, 1, "no")
    assert str(inner) in str(DataError("a", "b", cause=inner))
