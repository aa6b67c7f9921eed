"""What NVIDIA's devices exchange through NCCL: when it is taken, what is said where it fails, and the bits it moves."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blobnet.callbacks import Checkpoint
from blobnet.device import opencl
from blobnet.device.device import Device
from blobnet.device.discovery import devices
from blobnet.errors import BlobnetWarning, DeviceError, OutOfMemoryError
from blobnet.model import load
from blobnet.parallel import nccl
from blobnet.parallel.transports import Nccl, Transport
from blobnet.parallel.world import _MpiWorld
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import tiny_model
from tests.train.test_shards import RANK, SETTINGS, X, Y

UUID, OTHER = b"a" * 16, b"b" * 16


def failing(code: int) -> nccl.Libraries:
    """Libraries of which every function fails."""

    def say(_: int, text: Any) -> int:
        text._obj.value = b"out of memory"
        return 0

    names = {
        "ncclGetErrorString": lambda _: b"remote process exited",
        "ncclGetLastError": lambda _: b"\nNET/Socket : gone",
    }
    functions = dict.fromkeys(("ncclSend", "ncclGroupEnd"), lambda *_: code)
    return nccl.Libraries(
        SimpleNamespace(**names, **functions), SimpleNamespace(cuMemCreate=lambda: code, cuGetErrorString=say), "1.2.3"
    )


def test_errors_are_in_the_libraries_own_words() -> None:
    rule = (
        r"NCCL: ncclSend must succeed\. Received code=6, cause=remote process exited: NET/Socket : gone\. Hint: BLOBNET"
    )
    with pytest.raises(DeviceError, match=rule):
        failing(6).call("ncclSend", 1, 2)
    with pytest.raises(
        OutOfMemoryError, match=r"NCCL: cuMemCreate must succeed\. Received code=2, cause=out of memory\."
    ):
        failing(2).call("cuMemCreate")
    failing(0).call("ncclGroupEnd")


class TwoRanks:
    """MPI, as the first of two ranks on one host sees it."""

    def __init__(self, other: Callable[[Any], Any]) -> None:
        self.other = other

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Get_size(self) -> int:  # noqa: N802
        return 2

    def Split_type(self, kind: int) -> TwoRanks:  # noqa: N802
        return self

    def Dup(self) -> TwoRanks:  # noqa: N802
        return self

    def allgather(self, value: Any) -> list[Any]:
        return [value, self.other(value)]


class Heard:
    """The heartbeat of ranks of which the other one is never at fault."""

    is_heard = True

    def __init__(self, *_: Any) -> None:
        pass

    def doing(self, state: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def leave_judged(self) -> None:
        pass


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What communicators were made with."""
    made: list[tuple[Any, ...]] = []

    def communicator(*arguments: Any) -> Any:
        made.append(arguments)
        return SimpleNamespace(libraries=SimpleNamespace(version="1.2.3"))

    monkeypatch.delenv("BLOBNET_NCCL", raising=False)
    monkeypatch.setattr("blobnet.parallel.world.Heartbeat", Heard)
    monkeypatch.setattr(nccl, "missing", str)
    monkeypatch.setattr(nccl, "identifier", lambda: b"id")
    monkeypatch.setattr(nccl, "Communicator", communicator)
    return made


def world_of(other: bytes) -> _MpiWorld:
    """Two ranks, of which the other one has that device, and finds what this one finds."""

    def said(value: Any) -> Any:
        return (other, value[1]) if isinstance(value, tuple) else value

    return _MpiWorld(SimpleNamespace(COMM_WORLD=TwoRanks(said), COMM_TYPE_SHARED=1), lambda: None, ends=False)


def owner(uuid: bytes | None) -> Any:
    return SimpleNamespace(info=SimpleNamespace(uuid=uuid))


def test_devices_of_one_host_are_connected_once(begun: list[Any]) -> None:
    world = world_of(OTHER)
    assert world.transport.name == "MPI"
    for _ in range(2):
        world.connect(owner(UUID))
        assert (world.transport.name, world.transport.in_buckets) == ("NCCL 1.2.3", False)
    assert begun == [(0, 2, b"id", UUID)]


@pytest.mark.parametrize(("own", "other"), [(UUID, UUID), (UUID, b""), (None, OTHER), (None, b"")])
def test_other_devices_go_through_mpi(begun: list[Any], own: bytes | None, other: bytes) -> None:
    # Two ranks on one device, or one whose device is not NVIDIA's.
    world = world_of(other)
    world.connect(owner(own))
    assert (world.transport.name, begun) == ("MPI", [])


def test_what_is_missing_is_said_once(begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "missing", lambda: "libnccl.so.2: no such file")
    world = world_of(OTHER)
    rule = (
        r'NCCL: it should be there .* Received cause=libnccl.so.2: no such file\. Hint: pip install "blobnet\[nccl\]"'
    )
    with pytest.warns(BlobnetWarning, match=rule):
        world.connect(owner(UUID))
    world.connect(owner(UUID))  # Where warnings are errors.
    assert (world.transport.name, begun) == ("MPI", [])


def test_a_variable_forbids_it(begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBNET_NCCL", "0")
    world = world_of(OTHER)
    world.connect(owner(UUID))
    assert (world.transport.name, begun) == ("MPI", [])


def test_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nccl.ctypes, "CDLL", absent)
    nccl.find.cache_clear()
    assert nccl.missing() == "libcuda.so.1: cannot open shared object file"


class Exported:
    """Memory that no driver takes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptors: list[int] = []

    def export(self) -> int:
        self.descriptors.append(os.open(os.devnull, os.O_RDWR))
        return self.descriptors[-1]


@pytest.mark.parametrize(
    ("size", "words"),
    [(1 << 31, r", and crashes from 2 GiB on\. Received bytes=2147483648"), (64, r"\. Received code=-7")],
)
def test_memory_that_a_driver_does_not_take(
    device: Device, monkeypatch: pytest.MonkeyPatch, size: int, words: str
) -> None:
    # What a driver itself would do with such a descriptor is its own affair.
    monkeypatch.setattr(opencl, "CREATE_BUFFER", lambda *arguments: setattr(arguments[-1]._obj, "value", -7))
    memory = Exported(size)
    communicator: Any = SimpleNamespace(libraries=SimpleNamespace(version="1"), allocate=lambda _: memory)
    rule = rf"the driver must take memory that CUDA has exported{words}\. Hint: BLOBNET_NCCL=0"
    with pytest.raises(DeviceError, match=rule):
        Nccl(communicator, Transport(), lambda _: nullcontext()).allocate(device, size)
    for descriptor in memory.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_processors_elements_are_where_they_are(device: Device) -> None:
    if not device.is_host:
        pytest.skip("for processors")
    buffer = device.memory.allocate(40)
    device.memory.write(buffer, np.arange(10, dtype=np.float32))
    with device.memory.mapped((buffer, range(3, 6)), (buffer, range(7, 7))) as (own, none):
        assert (own.tolist(), none.size) == ([3, 4, 5], 0)
        own[...] = 7
    assert device.memory.read(buffer, 10).tolist() == [0, 1, 2, 7, 7, 7, 6, 7, 8, 9]


@needs_mpi
def test_ranks_with_a_gpu_each_write_the_file_of_one(device: Device, tmp_path: Path) -> None:
    alike = Counter(info.name for info in devices() if info.uuid)
    if alike[device.info.name] < 2 or nccl.missing():
        pytest.skip("needs two NVIDIA GPUs and NCCL")
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X, Y, device=device, verbose=False, shards=4, callbacks=callback, **SETTINGS)
    told = f"{RANK}\nfrom blobnet.parallel.world import World\nprint(World.current().transport.name)"
    for order in ("ordered", "fast"):
        more = tmp_path / f"{order}.h5", 4, order, 1000, 0
        said = mpiexec(2, device, "-c", told, *more, check=True, apart=True).stdout
        assert said.count("NCCL") == 2
    assert (tmp_path / "ordered.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    fast = load(tmp_path / "fast.h5")
    for name, values in alone.weights.items():
        np.testing.assert_allclose(fast.weights[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
