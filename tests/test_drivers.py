"""The driver matrix: what it counts, and what it prints."""

from __future__ import annotations

from pathlib import Path

from tests.bench.drivers import Outcome, counted_findings, pytest_counts, table

TESTS = """
import os, pytest

@pytest.fixture
def broken():
    raise ValueError

def test_passes(): assert os.environ["BLOBNET_DEVICE"] == "0:7"
def test_passes_too(): pass
@pytest.mark.parametrize("number", range(3))
def test_fails(number): assert number > 5
def test_is_broken(broken): pass
def test_is_skipped(): pytest.skip("why")
"""


def test_pytest_counts(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    arguments = ["-p", "no:xdist", "-o", "addopts=", "-o", "console_output_style=classic", "--rootdir", str(tmp_path)]
    found = pytest_counts([*arguments, str(file)], {"BLOBNET_DEVICE": "0:7"})
    assert found == {"passed": 2, "failed": 4, "skipped": 1}
    assert pytest_counts([*arguments, str(file), "-k", "none_of_them"], {}) == {"error": "pytest ended with status 5"}


def test_oclgrind_counts() -> None:
    lines = ["races:\n", "a\n", "    one\n", "a\n", "    two\n", "b\n", "    three\n", "8 configurations\n"]
    lines += ["unset:\n", "5 configurations\n", "3 findings\n"]
    assert counted_findings(lines, 1) == {"passed": 11, "failed": 3}
    assert counted_findings(lines[:-1], -11) == {"error": "ended with status -11: 5 configurations"}
    missing = "skipped: /liboclgrind-rt-icd.so does not exist; install Debian's package oclgrind\n"
    assert counted_findings([missing], 0) == {"error": missing.strip()}
    nothing = ["races:\n", "0 configurations\n", "0 findings\n"]
    assert counted_findings(nothing, 0) == {"error": "no configuration was run"}
    assert counted_findings([], 1) == {"error": "ended with status 1: it printed nothing"}


def test_table() -> None:
    rows = [
        Outcome("PoCL 3.1", "EPYC", "all", 8043, 0, 3, seconds=1500.4, cpu_seconds=2700.0),
        Outcome("Oclgrind ", "", "every kernel", error="skipped: it is not there", seconds=0.1),
    ]
    assert table(rows).splitlines() == [
        "| driver | device | tests | passed | failed | skipped | seconds | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| PoCL 3.1 | EPYC | all | 8,043 | 0 | 3 | 1,500 | 2,700 |",
        "| Oclgrind  |  | every kernel | skipped: it is not there |  |  | 0 | 0 |",
    ]
    assert [row.is_well for row in rows] == [True, False]
