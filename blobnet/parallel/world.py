"""The processes that train one model together: who there is, and how they exchange values (docs/many_devices.md)."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo, choose, devices
from blobnet.errors import BlobnetError, OptionError, PlanError, counted, extra, first_few, warn
from blobnet.parallel import cuda, mpiexec
from blobnet.parallel.heartbeat import ALONE_RULE, Heartbeat, State
from blobnet.parallel.transports import Copies, HostMemory, Transport
from blobnet.support.at_exit import at_exit
from blobnet.support.formatting import format_bytes
from blobnet.support.interrupt import STATUS, TERMINATED, Terminated

__all__ = ["World"]

#: The variable that tells processes which a rank starts that they are no ranks: its own process number.
_RANK_PROCESS = "BLOBNET_RANK_PROCESS"

#: The shards of a step under mpiexec, unless one says otherwise.
SHARDS = 8

#: Seconds in which rank 0 may say itself what went wrong.
_FIRST_SECONDS = 2.0

#: Seconds in which one rank may say of another one what is wrong with it, and write a file before.
_RESCUE_SECONDS = 20.0

#: Seconds within which its main thread must come to wait for the other one then.
_STOP_SECONDS = 4.0

#: Seconds in which mpiexec reads what a rank has said last.
_LAST_SECONDS = 0.5

#: Seconds between two looks at whether MPI has begun: signals are heard in between.
_LOOK_SECONDS = 0.05

T = TypeVar("T")
P = ParamSpec("P")

#: Threads that are within World.alone.
_alone = threading.local()


class World:
    """The ranks of a training: this process alone.

    Attributes:
        rank: the number of this process.
        size: how many there are.
        local_rank: the number of this process among those of its host.
        transport: what elements of devices' buffers go through: see :meth:`connect`.
        shards: into how many a batch is cut unless one says otherwise.
    """

    rank = 0
    size = 1
    local_rank = 0
    shards = 1
    transport = Transport()

    @staticmethod
    def started() -> World:
        """All processes that mpiexec has started together; this one alone where there was none, or a rank started it.

        Raises:
            OptionError: mpiexec has started it, and mpi4py is missing, or is that of another MPI.
        """
        return _started() if _is_rank() else ALONE

    @staticmethod
    def current() -> World:
        """Return the ranks that train together: all that were started, but within :meth:`alone` this process only."""
        return ALONE if getattr(_alone, "depth", 0) else World.started()

    @staticmethod
    def of_calls() -> World:
        """Return the ranks that share the work of a prediction; in threads besides the main one, this process only.

        What ranks share they must ask for in the same order, which threads do not keep.
        """
        return World.current() if threading.current_thread() is threading.main_thread() else ALONE

    @staticmethod
    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        """Let this process (in this thread) train, measure and predict alone within, on the device of its rank.

        For what not all ranks do: ``if world.is_first: with World.alone(): model.evaluate(x, y)``.
        """
        _alone.depth = getattr(_alone, "depth", 0) + 1
        try:
            yield
        finally:
            _alone.depth -= 1

    @property
    def is_first(self) -> bool:
        """True if this is the rank that prints and writes files."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on each of them; all must call it."""
        return [value]

    def gather_numbers(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The numbers of all ranks, each as many, a row of each in their order, on each of them; all must call it."""
        return numbers[np.newaxis]

    def broadcast(self, value: T) -> T:
        """The value of rank 0, on every rank; all must call it."""
        return self.gather(value)[0]

    def scatter(self, items: Iterable[T]) -> Iterator[T]:
        """Return this rank's items of something that all ranks have: each rank in turn gets one."""
        return itertools.islice(items, self.rank, None, self.size)

    def gather_in_order(self, own: Iterable[T]) -> list[T]:
        """Return on each rank what all ranks made of the items of :meth:`scatter`, in their order; all must call it."""
        every = self.gather(list(own))
        return [items[turn] for turn in range(len(every[0])) for items in every if turn < len(items)]

    def share(self, count: int) -> range:
        """The part of this rank of so many items in a row; all parts are of one length, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def complete(self, values: npt.NDArray[Any], own: range) -> None:
        """Fills in the rows of an array that other ranks have computed, each its ``own``; all must call it."""

    def propagate_errors(self, call: str = "") -> contextlib.AbstractContextManager[None]:
        """An error of blobnet's that a rank meets within is raised on all of them, after what they do within.

        All must enter it, in the same ``call``, and within none may wait for others.

        Raises:
            OptionError: other ranks are in another call.
        """
        return contextlib.nullcontext()

    def connect(self, device: Device) -> None:
        """Chooses what elements of the device's buffers go through, on all ranks alike; all must call it.

        Raises:
            DeviceError: what should carry them fails.
        """

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """A call of all ranks, who must all enter it.

        One that meets an error within while others wait for it ends all of them in a line that names it, as one does at
        any time that is lost, or that hangs in a step.
        """
        return contextlib.nullcontext()

    def last_words(self, words: Callable[[], str], rescue: Callable[[], None] = lambda: None) -> None:
        """Set what to say after the line if another rank ends this one: what is safe on disk.

        ``rescue`` is what the rank that says it does before, in another thread, while its main one waits for others.
        """

    def doing(self, state: State) -> contextlib.AbstractContextManager[None]:
        """Tell those who watch what this rank does within."""
        return contextlib.nullcontext()

    @property
    def waits(self) -> bool:
        """True while this rank waits for others, or for what they exchange."""
        return False

    @property
    def who(self) -> str:
        """The prefix of an error of this rank; empty for the first one."""
        return "" if self.is_first else f"on rank {self.rank}: "

    def end(self, line: str, status: int = 1) -> None:
        """Ends all ranks, with a line, which is left to the first if it has one; nothing where there is one rank."""

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """An error within ends all ranks, with a line that names the rank if it is not the first; all must enter it."""
        yield

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Let the first rank alone print within."""
        with contextlib.ExitStack() as silence:
            if not self.is_first:
                nowhere = silence.enter_context(open(os.devnull, "w"))  # noqa: PTH123
                silence.enter_context(contextlib.redirect_stdout(nowhere))
                silence.enter_context(contextlib.redirect_stderr(nowhere))
            yield


class _OneRank(World):
    """The only process that mpiexec has started: it trains as several would."""

    shards = SHARDS


class _MpiWorld(_OneRank):
    """The processes of MPI's world."""

    def __init__(self, mpi: Any, release: Callable[[], None], *, ends: bool) -> None:
        self._mpi, self._all = mpi, mpi.COMM_WORLD
        self._release = release
        self.rank, self.size = self._all.Get_rank(), self._all.Get_size()
        host = self._all.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self._is_local = host.Get_rank(), host.Get_size() == self.size
        #: Carries errors, and no values: a rank that is alone in a call takes nothing that another one has sent.
        self._errors = self._all.Dup()
        self._host_memory = HostMemory(mpi, self.doing)
        self.transport: Transport = self._host_memory
        #: The devices that are connected, by their UUIDs, or would be if they could.
        self._connected: list[bytes] = []
        self._words: Callable[[], str] = str
        self._rescue: Callable[[], None] = lambda: None
        self._heartbeat = Heartbeat(self.rank, self._all.allgather, self._is_local, self._end_for, ends)
        at_exit(self.leave)
        if not self._heartbeat.is_heard and self.is_first:
            rule, hint = "all hosts should reach the first rank's by TCP", "without, a rank that hangs is not noticed."
            warn("MPI", rule, host=socket.gethostname(), hint=hint)

    def last_words(self, words: Callable[[], str], rescue: Callable[[], None] = lambda: None) -> None:
        self._words, self._rescue = words, rescue

    def gather(self, value: T) -> list[T]:
        with self.doing("waits"):
            found: list[T] = self._all.allgather(value)
        return found

    def gather_numbers(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found = np.empty((self.size, numbers.size))
        with self.doing("waits"):
            self._all.Allgather(numbers, found)
        return found

    def complete(self, values: npt.NDArray[Any], own: range) -> None:
        for rank, (count, first, end) in enumerate(self.gather((len(values), own.start, own.stop))):
            if count != len(values):
                rule = "all ranks must ask for the same samples"
                raise OptionError(f"rank {rank}", rule, samples=count, others=len(values))
            with self.doing("waits"):
                self._all.Bcast(values[first:end], root=rank)

    def leave(self) -> None:
        """Waits at the end of this process until the others may be left, who hear of the error that ends it, if any."""
        error = _last_error()
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._heartbeat.fail(_line(error))
        self._heartbeat.leave_judged()

    @contextlib.contextmanager
    def propagate_errors(self, call: str = "") -> Iterator[None]:
        met: BlobnetError | None = None
        try:
            yield
        except BlobnetError as error:
            met = error
        with self._heartbeat.doing("waits", call):
            every = self._errors.allgather((call, met))
        if met is not None:
            raise met
        for rank, (other_call, _) in enumerate(every):
            if other_call != every[0][0]:
                rule = "all ranks must make the same calls, in the same order"
                calls = {f"rank_{rank}": other_call or "another call", "rank_0": every[0][0] or "another call"}
                raise OptionError(f"rank {rank}", rule, hint=f"{ALONE_RULE}.", **calls)
        for rank, (_, other) in enumerate(every):
            if other is not None:
                other.args = (f"on rank {rank}: {other}",)
                raise other

    def connect(self, device: Device) -> None:
        uuid = (device.info.uuid if cuda.is_wanted() else None) or b""
        uuids = self.gather(uuid)
        if not self._is_local or not all(uuids) or len(set(uuids)) < self.size:
            self.transport, self._connected = self._host_memory, []
        elif uuids != self._connected:
            others = [other for other in uuids if other != uuid]
            hindered = next(filter(None, self.gather(cuda.missing() or cuda.out_of_reach(uuid, others))), "")
            self.transport, self._connected = self._host_memory if hindered else self._copies(uuid), uuids
            if hindered and self.is_first:
                rule = "gradients should go from device to device, and go through the host"
                warn("ranks", rule, cause=hindered, hint="BLOBNET_CUDA=0 says that they are to.")

    def _copies(self, uuid: bytes) -> Copies:
        """Return what copies between the ranks' devices; all must call it."""
        name = self.broadcast(f"blobnet-{secrets.token_hex(16)}")
        with self.doing("waits"):
            communicator = cuda.Communicator(self.rank, self.size, name, uuid, lambda: self.gather(None))
        return Copies(communicator, self._host_memory, self.doing)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self._heartbeat.begin()
        try:
            yield
        except BaseException as error:
            self._heartbeat.fail(_line(error).removesuffix(self._words()).rstrip())
            raise

    def doing(self, state: State) -> contextlib.AbstractContextManager[None]:
        return self._heartbeat.doing(state)

    @property
    def waits(self) -> bool:
        return self._heartbeat.waits

    def _end_for(self, fault: str) -> None:
        """Ends all ranks for what another one did, or did not: the first does, or the second where that is at fault."""
        if self.rank > 1:
            time.sleep(_RESCUE_SECONDS)
        elif self._heartbeat.stop_waiting(_STOP_SECONDS):
            with contextlib.suppress(Exception):  # The last file is as it was then.
                self._rescue()
        self._say_last(f"error: {fault}", 1)

    def end(self, line: str, status: int = 1) -> None:
        if not self.is_first:
            time.sleep(_FIRST_SECONDS)
        self._say_last(line, status)

    def _say_last(self, line: str, status: int) -> None:
        self._heartbeat.leave()
        words = self._words()
        os.write(2, f"{line.rstrip('.')}.{' ' if words else ''}{words}\n".encode())
        mpiexec.announce_end()
        time.sleep(_LAST_SECONDS)  # mpiexec forgets what it has not read when it ends all.
        self._release()
        self._all.Abort(status)
        time.sleep(_LAST_SECONDS)  # It may return, before mpiexec has ended this process.
        os._exit(status)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        stderr = sys.stderr
        with self.watched():
            try:
                yield
            except BaseException as error:
                if not isinstance(error, BlobnetError | KeyboardInterrupt):
                    traceback.print_exc(file=stderr)
                word = "" if isinstance(error, KeyboardInterrupt) else "error: "
                stderr.flush()
                words, self._words = self._words(), str  # The error has them.
                if words and not self.is_first and not isinstance(error, KeyboardInterrupt):
                    time.sleep(_RESCUE_SECONDS)  # The first writes what the last step has left, and says it.
                self.end(f"{word}{self.who}{_line(error)}", _status(error))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split("\n")) or type(error).__name__


def _status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else STATUS
    return 1


#: The world of a process that nobody has started together with others.
ALONE = World()


def _is_rank() -> bool:
    process = str(os.getpid())
    is_other = os.environ.get(_RANK_PROCESS, process) != process
    return not is_other and any(name in os.environ for name in mpiexec.RANKS)


@cache
def _started(*, ends: bool = False) -> World:
    rule = "a process that mpiexec starts needs mpi4py, and the MPI that this mpiexec belongs to"
    hint = f"{extra('mpi')}, and start it with the mpiexec that lies beside Python then."
    release = (lambda: None) if ends else mpiexec.hold_streams()
    try:
        mpi = _begun_mpi(release, ends=ends)
    except (ImportError, RuntimeError) as error:
        raise OptionError("MPI", rule, cause=str(error).partition("\n")[0], hint=hint) from error
    found = mpi.COMM_WORLD.Get_size()
    started = max(int(os.environ.get(name, "1")) for name in mpiexec.SIZES)
    if found == 1 < started:
        library = mpi.Get_library_version().split("\n")[0].strip("\0 ")
        hint = f"{hint} For another MPI: pip install --no-binary=mpi4py mpi4py, with its mpicc on the PATH."
        raise OptionError("MPI", rule, started=started, found=found, mpi4py_uses=library, hint=hint)
    os.environ[_RANK_PROCESS] = str(os.getpid())
    return _MpiWorld(mpi, release, ends=ends) if found > 1 else _OneRank()


def _begun_mpi(release: Callable[[], None], *, ends: bool) -> Any:
    """The library, once all ranks have come so far; while this one waits for them it hears signals.

    Where one that mpiexec has started on this host is gone, so that they never will, a line says so, and all end.

    NOTE: mpi4py begins MPI as it is imported, in C, where Python hears nothing and runs no other thread. So MPI begins
    past mpi4py, in a thread that this one waits for; at the end of a process, where Python starts none, in this one.
    """
    rc = importlib.import_module("mpi4py").rc
    before = rc.initialize, rc.finalize
    rc.initialize, rc.finalize = False, rc.finalize is not False
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    finally:
        rc.initialize, rc.finalize = before
    if mpi.Is_initialized():
        return mpi
    try:
        begin = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    except (OSError, AttributeError):  # On Windows, where a module does not give the names of what it links to.
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        return mpi
    arguments = None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())
    if ends:
        begin(*arguments)
    else:
        thread = threading.Thread(target=begin, args=arguments, name="blobnet-mpi", daemon=True)
        thread.start()
        watch = mpiexec.Watch()
        try:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
                if (line := watch.missing()) is not None and thread.is_alive():
                    _end_unbegun(line, release)
        except KeyboardInterrupt as error:
            _interrupted.append(error)
            raise
    if not mpi.Is_initialized():
        raise RuntimeError("MPI_Init_thread has failed")
    for communicator in (mpi.COMM_WORLD, mpi.COMM_SELF):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)  # As mpi4py does: they become exceptions.
    return mpi


def _end_unbegun(line: str, release: Callable[[], None]) -> None:
    """Ends this process before MPI has begun, and so all others, of which the first says why."""
    if mpiexec.speaks_first():
        sys.stdout.flush()
        os.write(2, f"error: {line}.\n".encode())
    mpiexec.announce_end()
    time.sleep(_FIRST_SECONDS)  # Until it has been said, and mpiexec has read it.
    release()
    os._exit(1)


#: The interrupts of this process while it waited for others to begin MPI, which cannot end then as it should.
_interrupted: list[KeyboardInterrupt] = []


def _last_error() -> BaseException | None:
    """Return the error that ends this process, which nobody has caught."""
    return getattr(sys, "last_value", None)


def join_ending() -> None:
    """Begin MPI at the end of a rank that has not yet begun it: others that wait for it hear that it has ended.

    Where a script has begun MPI itself, an error alone has the rank do that.
    """
    if _interrupted:
        sys.stdout.flush()
        os._exit(_status(_interrupted[0]))
    error = _last_error()
    is_over = "mpi4py.MPI" in sys.modules and (error is None or _started.cache_info().currsize)
    if not _is_rank() or is_over or isinstance(error, KeyboardInterrupt) or mpiexec.missing_rank():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Heard in C too.
    with contextlib.suppress(BlobnetError):
        world = _started(ends=True)
        if isinstance(world, _MpiWorld):
            world.leave()


def watched(function: Callable[P, T]) -> Callable[P, T]:
    """A function that all ranks call, and within which they watch each other."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        with World.current().watched():
            return function(*arguments, **named)

    return call


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
        counts = " or ".join(counted(2**power, "rank") for power in range(shards.bit_length()))
        hint = f"start {counts}, or say more --shards."
        raise OptionError("MPI", rule, ranks=world.size, shards=shards, hint=hint)


def check_same(world: World, **settings: Any) -> None:
    """Raises OptionError, on every rank, where what a rank was started with is not what rank 0 has."""
    every = world.gather({name: str(value) for name, value in settings.items()})
    for rank, own in enumerate(every):
        for name, value in own.items():
            if value != every[0][name]:
                rule = f"all ranks must train with the same {name.replace('_', ' ')}"
                raise OptionError(f"rank {rank}", rule, **{f"rank_{rank}": value, "rank_0": every[0][name]})


def check_alike(world: World, info: DeviceInfo) -> None:
    """Warns where ranks have devices of different kinds, or drivers: these need not give the same bits."""
    every = world.gather(f"{info.name} ({info.platform}, driver {info.driver})")
    others = {name: rank for rank, name in enumerate(every) if name != every[0]}
    for name, rank in others.items() if world.is_first else ():
        rule = "the same bits for any number of ranks are promised for devices of one kind"
        warn(f"rank {rank}", rule, device=name, rank_0=every[0])


def check_room(world: World, info: DeviceInfo, needed: int) -> None:
    """Raises PlanError where ranks share a device that has no memory for what all of them need, in bytes."""
    places: dict[tuple[str, str], dict[int, int]] = {}
    for rank, (place, own) in enumerate(world.gather(((socket.gethostname(), info.address), needed))):
        places.setdefault(place, {})[rank] = own
    shared = places[socket.gethostname(), info.address]
    if len(shared) > 1 and sum(shared.values()) > info.memory:
        rule = "ranks that share a device must fit its memory together"
        received = {"needed": format_bytes(sum(shared.values())), "memory": format_bytes(info.memory)}
        hint = "start fewer ranks on this host, or take smaller batches."
        raise PlanError("MPI", rule, ranks=first_few(shared, 8), device=info.name, hint=hint, **received)


def device_of_rank(world: World, device: str | None) -> DeviceInfo:
    """The device that a rank takes of those like the one that is asked for: by its number on its host."""
    chosen = choose(device)
    alike = [info for info in devices() if (info.platform, info.name) == (chosen.platform, chosen.name)]
    is_one = device is not None and device == chosen.address
    return chosen if is_one or world.size == 1 else alike[world.local_rank % len(alike)]
