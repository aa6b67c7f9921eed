"""Fixtures of all tests: the OpenCL devices that they run on.

$BLOBNET_TEST_DEVICES chooses them: names as $BLOBNET_DEVICE takes them, separated by commas, or ``all``; by default the
one device that blobnet itself would choose. ``gfx1100`` is an AMD GPU's machine code, in an interpreter (tests/amd),
``gfx1100-wave64`` the same in waves of 64; names of tests/simulated.py are GPUs whose limits a CPU device observes.
Where there is none, the tests fail with blobnet's message.

NOTE: nothing here may import blobnet.device.device before a test asks for a device: tests/unit runs without OpenCL.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

from blobnet.support.cores import usable_cores

if TYPE_CHECKING:
    from blobnet.device.device import Device

# Workers fill the processor. Threads of BLAS and PyTorch beside them would only wait in loops; NumPy is not loaded yet.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

_DEFAULT = "default"
#: The lanes of a wave of those that are interpreted, by name.
_INTERPRETED = {"gfx1100": 32, "gfx1100-wave64": 64}


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "of a test with parameters the first set alone, of every other one the last, and none that takes long"
    parser.addoption("--sample", action="store_true", help=text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A process more than there are cores, since some wait: for children, for ranks, for what never answers."""
    return usable_cores() + 1


def pytest_configure() -> None:
    """A process that a test starts, and that a driver crashes, says on stderr where that was."""
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    # A shell ignores Ctrl-C for what it starts with `&`, and a test asks for Python's own handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--sample"):
        return
    sets: dict[str, list[pytest.Item]] = {}
    for item in items:
        sets.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = [same[-(number % 2)] for number, same in enumerate(sets.values())]
    kept = {item for item in chosen if not item.get_closest_marker("long")}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """What stands for ten thousand tests is not looked through for garbage after each of them."""
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", _device_names(), indirect=True, scope="session")


def _device_names() -> list[str]:
    wanted = os.environ.get("BLOBNET_TEST_DEVICES", "")
    if wanted != "all":
        return [name.strip() for name in wanted.split(",") if name.strip()] or [_DEFAULT]
    from blobnet.device.discovery import devices

    return [info.address for info in devices() if info.kind != "other"] or [_DEFAULT]


@pytest.fixture(scope="session", autouse=True)
def no_tunings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What somebody has tuned on this machine does not change what the tests run."""
    from blobnet.device import tuning

    folder = tmp_path_factory.mktemp("tunings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_folder", lambda: folder)
        patch.setattr(tuning, "_shipped_folder", lambda: folder / "shipped")
        yield


@pytest.fixture(scope="session", autouse=True)
def tight_memory() -> Iterator[None]:
    """Blobs of small networks take turns in memory as those of large ones do, and halos are cleared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blobnet.planning.memory._CLEAR_BYTES", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_stored_plans() -> Iterator[None]:
    """What was planned before a test changed a part of blobnet is not what it runs."""
    from blobnet.planning import plan_cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "_files", lambda: None)
        yield


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """A device, with its programs, for all tests of a process."""
    return _shared_device(None if request.param == _DEFAULT else request.param)


@cache
def _shared_device(name: str | None) -> Device:
    from blobnet.device.device import Device

    if name in _INTERPRETED:
        from tests.amd.device import MachineDevice

        return MachineDevice(lanes=_INTERPRETED[name])
    if name is not None:
        from tests import kinds
        from tests.simulated import GPUS, SimulatedDevice

        if name in GPUS:
            kinds.limit_to(GPUS[name])
            return SimulatedDevice(name)
    device = Device(name)
    device.programs.keeps_children = (
        True  # A child takes a GPU's driver seconds of processor time, and each test builds.
    )
    return device


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles and patches in place of GPUs', which drivers for CPUs take seconds to build."""
    from tests.small_tiles import take_small_patches, take_small_tiles

    take_small_tiles(monkeypatch)
    take_small_patches(monkeypatch)
