"""Files on which a reader did what it must not (tests/interop/fuzz.py): all are models now, or errors of blobnet's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blobnet.contraction import schedule_cache
from tests.interop import fuzz

pytest.importorskip("onnx")
pytest.importorskip("safetensors")

FILES = sorted(path.name for path in fuzz.CORPUS.iterdir())


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobnet.device.device.Device.__init__", fuzz.refused)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    schedule_cache._folder.cache_clear()
    schedule_cache._KNOWN.clear()
    yield
    schedule_cache._folder.cache_clear()
    schedule_cache._KNOWN.clear()


@pytest.mark.filterwarnings("ignore")  # Of libraries, about damage.
@pytest.mark.parametrize("name", FILES)
def test_files_that_once_were_findings(name: str, tmp_path: Path) -> None:
    target = fuzz.TARGETS[name.partition("-")[0]]
    path = tmp_path / f"file{target.suffix}"
    shutil.copy(fuzz.CORPUS / name, path)
    found, reached = fuzz.offence(target.load, path)
    assert found is None
    assert reached


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["hdf5", "safetensors", "tuning", "schedule"])
def test_changed_files_still_get_somewhere(name: str, tmp_path: Path) -> None:
    """The fuzzer's changes reach more than its whole files do, and meet no error but blobnet's."""
    target, random = fuzz.TARGETS[name], np.random.default_rng(0)
    seeds, path, seen, more = list(target.seeds()), tmp_path / f"file{target.suffix}", set(), set()
    for data in seeds:
        path.write_bytes(data)
        found, reached = fuzz.offence(target.load, path)
        assert found is None
        assert "a model" in reached
        seen |= reached
    for _ in range(60):
        path.write_bytes(fuzz.changed(target, seeds[-1], seeds, random))
        found, reached = fuzz.offence(target.load, path)
        assert found is None
        more |= reached - seen
    assert len(more) > 10
