"""Larger files of pictures, from files to a trained model and back."""

from __future__ import annotations

from pathlib import Path

import pytest

import blobnet as bn
from tests.packing import pack_digits


@pytest.fixture(params=["tar", "parquet", "lmdb"])
def archives(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Sixty digits to train on and thirty to test on."""
    data = bn.datasets.load("digits")
    for name, split, first in (("train-0", data.train, 0), ("train-1", data.train, 30), ("test-0", data.test, 0)):
        assert split is not None
        pack_digits(tmp_path / f"{name}.{request.param}", split, first, 30)
    return f"{tmp_path}/t*-?.{request.param}"


def test_train_resume_and_evaluate(run, archives: str) -> None:
    options = ["train", "resnet8", "--dataset", archives, "--batch-size", 16, "--shuffle-buffer", 20]
    whole = run(*options, "--epochs", 2, "--output", "whole.h5")
    assert whole.status == 0, whole.err
    assert "60 + 30 samples of (1, 8, 8), 10 classes" in whole.err
    assert run(*options, "--epochs", 1, "--schedule", "constant", "--output", "parts.h5").status == 0
    assert run(*options, "--epochs", 2, "--resume", "--output", "parts.h5").status == 0
    measured = run("evaluate", "whole.h5", "--dataset", archives, "--report", "--mistakes", "mistakes.csv")
    assert measured.status == 0, measured.err
    assert f"test-0{archives[archives.rindex('.') :]}" in Path("mistakes.csv").read_text()


def test_patterns_that_a_shell_expanded(run) -> None:
    failed = run("train", "resnet8", "--dataset", "a-0.tar", "a-1.tar")
    assert failed.status == 2
    assert "unknown argument 'a-1.tar': a pattern must stand in quotes, as --dataset 'train-{000..146}.tar' does" in (
        failed.err
    )
