"""The processes that train one model together: who there is, and how they exchange values (docs/many_devices.md)."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.blob import FLOAT32
from blobnet.device import Device, DeviceInfo, choose, devices
from blobnet.errors import BlobnetError, OptionError

__all__ = ["World"]

#: What mpiexec of MPICH (and srun), of Open MPI, and others by PMIx tell each process that they start.
_STARTED_BY_MPI = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

#: The shards of a step under mpiexec, unless one says otherwise.
SHARDS = 8

#: Seconds in which rank 0 may say itself what went wrong.
_FIRST_SECONDS = 2.0

T = TypeVar("T")


class World:
    """The ranks of a training: this process alone.

    Attributes:
        rank: the number of this process.
        size: how many there are.
        local_rank: the number of this process among those of its host.
    """

    rank = 0
    size = 1
    local_rank = 0

    @staticmethod
    def current() -> World:
        """All processes that mpiexec has started together; this one alone where there was none.

        Raises:
            OptionError: mpiexec has started it, and mpi4py is missing, or is that of another MPI.
        """
        return _started() if any(name in os.environ for name in _STARTED_BY_MPI) else ALONE

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints, and writes files."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on each of them; all must call it."""
        return [value]

    def of_first(self, value: T) -> T:
        """The value of rank 0, on every rank; all must call it."""
        return self.gather(value)[0]

    def swap(self, partner: int, device: Device, buffer: Any, given: range, taken: range) -> None:
        """Sends elements of a buffer to another rank, and puts those that it sends elsewhere into the same buffer.

        It is done, or in the device's queue, when it returns. Both ranks call it, for as many elements.

        Args:
            partner: the other rank.
            device: whose buffer it is.
            buffer: of float32.
            given: the elements to send.
            taken: where those of the other one go.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """An error within ends all ranks, with a line that names the rank if it is not the first."""
        yield


class _MpiWorld(World):
    """The processes of MPI's world, which exchange through page-locked memory."""

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._all = mpi, mpi.COMM_WORLD
        self.rank, self.size = self._all.Get_rank(), self._all.Get_size()
        self.local_rank = self._all.Split_type(mpi.COMM_TYPE_SHARED).Get_rank()
        self._memory: dict[str, npt.NDArray[np.float32]] = {}

    def gather(self, value: T) -> list[T]:
        found: list[T] = self._all.allgather(value)
        return found

    def swap(self, partner: int, device: Device, buffer: Any, given: range, taken: range) -> None:
        out, into = (self._host(device, name, max(len(given), len(taken))) for name in ("out", "into"))
        if given:
            reading = device.read_later(buffer, out[: len(given)], FLOAT32.itemsize * given.start)
            reading.values()
        self._all.Sendrecv(out[: len(given)], partner, recvbuf=into[: len(taken)], source=partner)
        if taken:
            device.write(buffer, into[: len(taken)], FLOAT32.itemsize * taken.start)

    def _host(self, device: Device, name: str, elements: int) -> npt.NDArray[np.float32]:
        memory = self._memory.get(name)
        if memory is None or memory.size < elements:
            memory = self._memory[name] = device.host_memory(FLOAT32.itemsize * elements).view(np.float32)
        return memory

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        stderr = sys.stderr
        try:
            yield
        except BaseException as error:
            if not self.is_first:
                time.sleep(_FIRST_SECONDS)  # What all of them find rank 0 says.
            if not isinstance(error, BlobnetError | KeyboardInterrupt):
                traceback.print_exc(file=stderr)
            who = "" if self.is_first else f"on rank {self.rank}: "
            word = "" if isinstance(error, KeyboardInterrupt) else "error: "
            print(f"{word}{who}{str(error) or type(error).__name__}", file=stderr, flush=True)
            self._all.Abort(1)


#: The world of a process that nobody has started together with others.
ALONE = World()


@cache
def _started() -> World:
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        rule = "a process that mpiexec starts needs mpi4py, and the MPI that this mpiexec belongs to"
        hint = "pip install 'blobnet[mpi]', and start it with the mpiexec that lies beside Python then."
        raise OptionError("MPI", rule, cause=error, hint=hint) from error
    world = _MpiWorld(mpi)
    return world if world.size > 1 else ALONE


def check_world(world: World, shards: int, batch_size: int) -> None:
    """Raises OptionError unless a batch can be cut into so many shards, and these be dealt out to the ranks."""
    if shards < 1 or shards & (shards - 1):
        rule = "the number of shards must be a power of two: they are added by a balanced tree"
        raise OptionError("shards", rule, shards=shards)
    if batch_size % shards:
        below, above = batch_size // shards * shards, -(-batch_size // shards) * shards
        near = " or ".join(str(size) for size in (below, above) if size)
        rule, hint = "the shards must divide a batch", f"take a batch of {near}."
        raise OptionError("shards", rule, batch_size=batch_size, shards=shards, hint=hint)
    if world.size > shards or shards % world.size:
        rule = "every rank must have as many shards of a batch, and at least one"
        hint = f"start {' or '.join(str(2**n) for n in range(shards.bit_length()))} ranks, or say more --shards."
        raise OptionError("MPI", rule, ranks=world.size, shards=shards, hint=hint)


def check_same(world: World, **settings: Any) -> None:
    """Raises OptionError, on every rank, where what a rank was started with is not what rank 0 has."""
    every = world.gather({name: str(value) for name, value in settings.items()})
    for rank, own in enumerate(every):
        for name, value in own.items():
            if value != every[0][name]:
                rule = f"all ranks must train with the same {name.replace('_', ' ')}"
                raise OptionError(f"rank {rank}", rule, **{f"rank_{rank}": value, "rank_0": every[0][name]})


def device_of_rank(world: World, device: str | None) -> DeviceInfo:
    """The device that a rank takes of those like the one that is asked for: by its number on its host."""
    chosen = choose(device)
    alike = [info for info in devices() if (info.platform, info.name) == (chosen.platform, chosen.name)]
    is_one = device is not None and device == chosen.address
    return chosen if is_one or world.size == 1 else alike[world.local_rank % len(alike)]
