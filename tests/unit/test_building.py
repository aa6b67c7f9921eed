"""The line that says how far building is."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from blobnet.support import build_progress
from blobnet.support.build_progress import announced, progress_line


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(build_progress, "sys", SimpleNamespace(stderr=stream, modules={}))
    return stream


def build(*, fails: bool = False) -> None:
    with progress_line() as advance:
        advance(0, 10)
        advance(10, 10)
        advance(9, 9)
        if fails:
            raise KeyboardInterrupt


def test_the_line_is_rewritten_and_gone_at_the_end(terminal: Terminal) -> None:
    build()
    lines = terminal.getvalue().split("\r")
    assert [line.rstrip() for line in lines] == [
        "",
        "compiling kernels 0/10 (first run only)",
        "compiling kernels 10/10 (first run only)",
        "compiling kernels 9/9 (first run only)",
        "",
        "",
    ]
    assert len(lines[3]) == len(lines[2]), "nothing is left of a longer one"
    assert len(lines[4]) == len(lines[3].rstrip()) + len("^C")


def test_the_line_is_gone_when_building_ends_early(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(fails=True)
    assert terminal.getvalue().endswith(" \r")


def test_nothing_is_written_where_nothing_is_built(terminal: Terminal) -> None:
    with progress_line():
        pass
    assert terminal.getvalue() == ""


def test_nothing_is_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(build_progress, "sys", SimpleNamespace(stderr=stream, modules={}))
    build()
    assert stream.getvalue() == ""
    monkeypatch.setattr(
        build_progress, "sys", SimpleNamespace(stderr=None, modules={})
    )  # As in programs without a console on Windows.
    build()
    # A notebook shows what a file would only keep.
    notebook = SimpleNamespace(stderr=stream, modules={"ipykernel.zmqshell": None})
    monkeypatch.setattr(build_progress, "sys", notebook)
    build()
    assert "10/10" in stream.getvalue()


def test_who_is_not_verbose_is_silent(terminal: Terminal) -> None:
    @announced
    def fit(count: int, *, verbose: bool = True) -> tuple[int, bool]:
        build()
        return count, verbose

    @announced
    def search(*, verbose: bool = True) -> None:
        fit(1)

    assert fit(3, verbose=False) == (3, False)
    search(verbose=False)
    assert terminal.getvalue() == ""
    assert fit(3) == (3, True)
    assert "10/10" in terminal.getvalue()
    with pytest.raises(TypeError):
        fit("too", "many")
    assert fit.__name__ == "fit"
