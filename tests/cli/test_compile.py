"""``blobnet compile``."""

from __future__ import annotations

import re

import pytest

MATMUL = "O[n, m] = +(A[n, k] * B[k, m])"


def test_it_shows_what_becomes_of_a_contraction(run) -> None:
    found = run("compile", MATMUL, "--shapes", "A=8x16", "B=16x32", "--show")
    assert found.status == 0
    assert "range  O =   A   B" in found.out
    assert re.search(r"schedule   \w+ .*\n  predicted  .*\d", found.out)
    assert "__kernel" in found.out
    assert "GFLOPS" in found.out


def test_a_text_longer_than_names_of_files(run) -> None:
    text = f"function (A[N]) -> (R) {{ R = {' + '.join('A' * 90)}; }}"
    assert run("compile", text, "--shapes", "A=7").status == 0


def test_no_text(run) -> None:
    found = run("compile", "matmul.txt", "--shapes", "A=8x16")
    rule = "TEXT: it must be a contraction, such as 'O[n] = +(A[n, k])', or a file's path. Received text=matmul.txt."
    assert (found.status, found.err) == (1, f"error: {rule}\n")


def test_a_file_that_is_no_text(run, tmp_path) -> None:
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    found = run("compile", str(tmp_path / "model.h5"))
    rule = "the file must hold the text of a contraction. Received cause="
    assert found.status == 1
    assert found.err.startswith(f"error: {tmp_path / 'model.h5'}: {rule}")
    assert run("compile", "a\0b").status == 1


def test_schedules_and_gradients(run, tmp_path) -> None:
    (tmp_path / "matmul.txt").write_text(MATMUL)
    arguments = ["compile", str(tmp_path / "matmul.txt"), "--shapes", "A=8x16", "B=16x32"]
    found = run(*arguments, "--schedule", "tile n 1x1x2; unroll k")
    assert "schedule   tile n 1x1x2; unroll k" in found.out
    assert "launch 1: d_A" in run(*arguments, "--gradients", "A").out
    everything = run(*arguments, "--gradients").out
    assert "d_A" in everything
    assert "d_B" in everything


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--shapes", "A=8y16"], 2, "argument --shapes: it must be a name and its shape, such as I=8x64x28x28"),
        (["--shapes", "A=8x16", "B=16x32", "--sizes", "N"], 2, "--sizes: it must be a name and a whole number"),
        (["--shapes", "A=8x16"], 1, "the input 'B' is missing"),
        (["--shapes", "A=8x16", "B=16"], 1, "'B' has 1 axis"),
        (["--shapes", "A=8x16", "B=16x32", "--schedule", "tile q 1x1x1"], 1, "schedule: there is no index 'q'"),
    ],
)
def test_mistakes(run, arguments: list[str], status: int, message: str) -> None:
    found = run("compile", MATMUL, *arguments)
    assert found.status == status
    assert message in found.err
