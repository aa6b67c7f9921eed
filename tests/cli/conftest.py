"""The command line in this process: what it prints and its status, in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from blobnet.command_line.main import main
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo, choose

#: A model with everything whose state a resumed training must get right: dropout, running statistics.
NET = """
import blobnet as bn
from blobnet import layers

def net(input_shape=(1, 8, 8), classes=10, seed=0):
    return bn.Sequential([
        layers.Input(*input_shape),
        layers.Conv2D(4, 3, padding="same", bias=False),
        layers.BatchNorm(),
        layers.Activation("relu"),
        layers.Dropout(0.2),
        layers.Flatten(),
        layers.Dense(classes),
    ], seed=seed)
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Run = Callable[..., Result]


#: Devices that commands of this process have opened, by address.
_OPENED: dict[str, Device] = {}


@pytest.fixture(autouse=True)
def shared_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands of this process share a device's context and programs, which would take most of the time."""
    start = Device.__init__

    def opened(self: Device, info: DeviceInfo | str | None = None) -> None:
        info = info if isinstance(info, DeviceInfo) else choose(info)
        if info.address not in _OPENED:
            start(self, info)
            _OPENED[info.address] = self
        vars(self).update(vars(_OPENED[info.address]))
        vars(self).pop("tunings", None)  # a new device reads them anew

    monkeypatch.setattr(Device, "__init__", opened)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs ``blobnet`` with arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    folders, modules = list(sys.path), set(sys.modules)

    def call(*arguments: object) -> Result:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        return Result(status, *capsys.readouterr())

    yield call
    # A user's model file puts its folder on the path, and itself among the modules.
    sys.path[:] = folders
    for name in {name for name in sys.modules if name.startswith("blobnet_user_")} - modules:
        del sys.modules[name]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lenet5 after two epochs of digits."""
    path = tmp_path_factory.mktemp("trained") / "lenet5.h5"
    arguments = ["train", "lenet5", "--dataset", "digits", "--epochs", "2", "--batch-size", "64"]
    assert main([*arguments, "--learning-rate", "0.005", "--output", str(path)]) == 0
    return path


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A user's own model, as MODEL takes it."""
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    return "net.py:net"
