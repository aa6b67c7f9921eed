"""Copies between NVIDIA's devices: when they are made, what is said where they cannot be, and the bits they move."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.callbacks import Checkpoint
from blobnet.device import opencl
from blobnet.device.device import Device
from blobnet.device.discovery import devices
from blobnet.errors import BlobnetWarning, DeviceError, OutOfMemoryError
from blobnet.model import load
from blobnet.parallel import cuda
from blobnet.parallel.transports import Copies, Transport
from blobnet.parallel.world import _MpiWorld
from tests.host_cuda import Memories
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import tiny_model
from tests.train.test_shards import FEW, RANK, SETTINGS, X, Y

UUID, OTHER = b"a" * 16, b"b" * 16


class ThreeDevices(cuda.Driver):
    """A driver that knows three of them."""

    def devices(self) -> dict[bytes, int]:
        return {UUID: 0, OTHER: 1, b"c" * 16: 2}

    def can_reach(self, device: int, other: int) -> bool:
        return {device, other} != {0, 2}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ThreeDevices:
    found = ThreeDevices(Memories())
    monkeypatch.setattr(cuda, "find", lambda: found)
    return found


def test_errors_are_in_the_drivers_own_words() -> None:
    library = Memories()
    library.cuCtxSetCurrent = lambda *_: 6
    library.cuMemCreate = lambda *_: 2  # type: ignore[method-assign]
    rule = r"CUDA: cuCtxSetCurrent must succeed\. Received code=6, cause=out of memory\. Hint: BLOBNET_CUDA=0"
    with pytest.raises(DeviceError, match=rule):
        cuda.Driver(library).call("cuCtxSetCurrent")
    with pytest.raises(OutOfMemoryError, match=r"CUDA: cuMemCreate must succeed\. Received code=2, "):
        cuda.Driver(library).call("cuMemCreate")


@pytest.mark.skipif(bool(cuda.missing()) and "libcuda" not in cuda.missing(), reason="sockets of Linux")
def test_ranks_take_what_the_others_give(driver: ThreeDevices) -> None:
    """In turns from two memories, of which the other ranks have mapped the last one; nothing of it is lost."""
    ranks, size = 3, 5000
    meeting = threading.Barrier(ranks)
    results: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def values(memory: cuda.Memory) -> npt.NDArray[np.uint8]:
        return np.ctypeslib.as_array((ctypes.c_uint8 * memory.size).from_address(memory.address))

    def run(rank: int) -> None:
        uuid = sorted(driver.devices())[rank]
        own = cuda.Communicator(rank, ranks, "test-of-cuda-ranks", uuid, meeting.wait)
        given = [own.allocate(size) for _ in range(2)]
        taken = own.allocate(ranks * size)
        results[rank] = []
        for turn in range(6):
            memory = given[turn // 2 % 2]
            values(memory)[:size] = 10 * turn + rank
            values(taken)[:] = 255
            first, count = 8 * turn, size - 8 * turn
            others = [rank ^ 1, 2] if rank < 2 else [0, 1]
            own.swap([(other, (memory, first, count), (taken, other * size, count)) for other in others])()
            results[rank].append(values(taken)[: ranks * size].copy())

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for rank in range(ranks):
        assert len(results[rank]) == 6
        for turn, found in enumerate(results[rank]):
            wanted = np.full((ranks, size), 255)
            for other in {0, 1, 2} - {rank}:
                wanted[other, : size - 8 * turn] = 10 * turn + other
            np.testing.assert_array_equal(found.reshape(ranks, size), wanted)
    # Of the memory of each rank the others have mapped the one that was given last, until another one was.
    assert len(driver._library.files) == 3 * 3 + 3 * 2 * 3


def test_what_was_mapped_is_let_go_of_on_both_sides(driver: ThreeDevices) -> None:
    own, other = (cuda._Link(way) for way in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    communicator = object.__new__(cuda.Communicator)
    communicator._driver, communicator._device, communicator._context = driver, 0, None
    memory = communicator.allocate(100)
    found = []
    for _ in range(2):
        own.give(memory, 8)
        found.append(other.find(communicator._take))
        own.release()
        other.release()
    assert found[0] != found[1]
    assert other._mapped is None


@pytest.mark.parametrize("call", [lambda link: link.find(None), lambda link: link.wait(), lambda link: link.finish()])
def test_a_rank_that_is_lost_is_waited_for(
    call: Callable[[cuda._Link], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat ends this process then, and not an error that would leave it no time to save anything."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.close()

    def waits() -> None:
        raise TimeoutError

    monkeypatch.setattr(cuda, "_wait_for_the_end", waits)
    with pytest.raises(TimeoutError):
        call(cuda._Link(own))


def test_a_driver_that_fails_hinders(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Memories()
    library.cuInit = lambda *_: 100
    monkeypatch.setattr(cuda, "find", lambda: cuda.Driver(library))
    assert cuda.out_of_reach(UUID, [OTHER]).startswith("CUDA: cuInit must succeed. Received code=100, cause=")


def test_devices_out_of_reach(driver: ThreeDevices) -> None:
    far = b"c" * 16
    assert cuda.out_of_reach(UUID, [OTHER]) == ""
    assert cuda.out_of_reach(UUID, [OTHER, far]) == f"{UUID.hex()} cannot read the memory of {far.hex()}"
    assert cuda.out_of_reach(UUID, [b"d" * 16]) == f"CUDA does not find {'64' * 16}; is CUDA_VISIBLE_DEVICES set?"


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
    for name in ("BLOBNET_CUDA", "BLOBNET_NCCL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("blobnet.parallel.world.Heartbeat", Heard)
    monkeypatch.setattr(cuda, "missing", str)
    monkeypatch.setattr(cuda, "out_of_reach", lambda own, others: "")
    monkeypatch.setattr(cuda, "Communicator", lambda *arguments: made.append(arguments))
    return made


def world_of(other: bytes) -> _MpiWorld:
    """Two ranks, of which the other one has that device, and finds what this one finds."""

    def said(value: Any) -> Any:
        return other if value in (UUID, b"") else value

    return _MpiWorld(SimpleNamespace(COMM_WORLD=TwoRanks(said), COMM_TYPE_SHARED=1), lambda: None, ends=False)


def owner(uuid: bytes | None) -> Any:
    return SimpleNamespace(info=SimpleNamespace(uuid=uuid))


def test_devices_of_one_host_are_connected_once(begun: list[Any]) -> None:
    world = world_of(OTHER)
    assert world.transport.name == "MPI"
    for _ in range(2):
        world.connect(owner(UUID))
        assert (world.transport.name, world.transport.all_at_once, world.transport.adds) == ("CUDA", True, False)
    ((rank, size, name, uuid, _),) = begun
    assert (rank, size, uuid) == (0, 2, UUID)
    assert re.fullmatch("blobnet-[0-9a-f]{32}", name)


@pytest.mark.parametrize(("own", "other"), [(UUID, UUID), (UUID, b""), (None, OTHER), (None, b"")])
def test_other_devices_go_through_mpi(begun: list[Any], own: bytes | None, other: bytes) -> None:
    # Two ranks on one device, or one whose device is not NVIDIA's.
    world = world_of(other)
    world.connect(owner(own))
    assert (world.transport.name, begun) == ("MPI", [])


@pytest.mark.parametrize("what", ["missing", "out_of_reach"])
def test_what_hinders_them_is_said_once(begun: list[Any], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(cuda, what, lambda *_: "they are far apart")
    world = world_of(OTHER)
    rule = (
        r"ranks: gradients should go from device to device, .* Received cause=they are far apart\. Hint: BLOBNET_CUDA=0"
    )
    with pytest.warns(BlobnetWarning, match=rule):
        world.connect(owner(UUID))
    world.connect(owner(UUID))  # Where warnings are errors.
    assert (world.transport.name, begun) == ("MPI", [])


@pytest.mark.parametrize("name", ["BLOBNET_CUDA", "BLOBNET_NCCL"])
def test_a_variable_forbids_it(begun: list[Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0")
    world = world_of(OTHER)
    world.connect(owner(UUID))
    assert (world.transport.name, begun) == ("MPI", [])


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda.ctypes, "CDLL", absent)
    cuda.find.cache_clear()
    assert cuda.missing() == "libcuda.so.1: cannot open shared object file"
    monkeypatch.setattr(cuda.sys, "platform", "win32")
    assert cuda.missing() == "processes give each other memory on Linux alone"


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
    communicator: Any = SimpleNamespace(allocate=lambda _: memory)
    rule = rf"the driver must take memory that CUDA has exported{words}\. Hint: BLOBNET_CUDA=0"
    with pytest.raises(DeviceError, match=rule):
        Copies(communicator, Transport(), lambda _: nullcontext()).allocate(device, size)
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


#: What ranks on a processor run to take it for as many GPUs; so few samples that the last batch leaves one without.
PRETENDED = f"""
import sys
from tests import host_cuda
host_cuda.pretend()
{FEW}
from blobnet.parallel.world import World
print(World.current().transport.name)
"""


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize(("ranks", "shards", "bucket"), [(2, 4, 1 << 30), (2, 4, 300), (4, 4, 300), (2, 2, 1000)])
def test_ranks_that_copy_write_the_file_of_one(
    device: Device, tmp_path: Path, ranks: int, shards: int, bucket: int
) -> None:
    """In one bucket and in several, which are on their way while the backward pass goes on."""
    if not device.is_host or not sys.platform.startswith("linux"):
        pytest.skip("for processors, on Linux")
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X[:40], Y[:40], device=device, verbose=False, shards=shards, callbacks=callback, **SETTINGS)
    more = tmp_path / "more.h5", shards, "ordered", bucket, 0
    assert mpiexec(ranks, device, "-c", PRETENDED, *more, check=True).stdout.count("CUDA") == ranks
    assert (tmp_path / "more.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


@needs_mpi
def test_ranks_with_a_gpu_each_write_the_file_of_one(device: Device, tmp_path: Path) -> None:
    alike = Counter(info.name for info in devices() if info.uuid)
    if alike[device.info.name] < 2:
        pytest.skip("needs two NVIDIA GPUs")
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X, Y, device=device, verbose=False, shards=4, callbacks=callback, **SETTINGS)
    told = f"{RANK}\nfrom blobnet.parallel.world import World\nprint(World.current().transport.name)"
    for order in ("ordered", "fast"):
        more = tmp_path / f"{order}.h5", 4, order, 1000, 0
        said = mpiexec(2, device, "-c", told, *more, check=True, apart=True).stdout
        assert said.count("CUDA") == 2
    assert (tmp_path / "ordered.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    fast = load(tmp_path / "fast.h5")
    for name, values in alone.weights.items():
        np.testing.assert_allclose(fast.weights[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
