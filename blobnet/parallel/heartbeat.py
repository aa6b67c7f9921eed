"""The heartbeat of ranks: each says over TCP every second that it is there, and the first one judges.

A rank that waits for others in MPI hears nothing else: not that one of them was killed, hangs in a driver or has met an
error. So a thread of each rank talks to one of the first rank, which ends the job in a line that names who is at fault.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: Seconds between two words of a rank, without a word after which it is lost, and after which an error of one rank is
#: that of the job if others wait for it.
INTERVAL, SILENCE, PATIENCE = 1.0, 20.0, 5.0
#: A step may take so many times as long as any before, beyond SILENCE, while others wait for it.
_SLOWER = 5.0
#: Seconds for ranks to find each other.
_CONNECT = 10.0
#: Bytes that are read at once, and characters of an error that are said.
_MAX_BYTES, _MAX_TEXT = 1 << 16, 2000

#: The rule about what a rank computes by itself.
ALONE_RULE = "what one rank does by itself, it does within World.alone() (docs/many_devices.md)"

#: The number of no call, behind which a rank does not go on.
_FOR_GOOD = -1

#: The state of a rank's main thread: its own work, the first step or a later one, waiting for others; or it has met
#: an error, or ended.
State = Literal["works", "begins", "steps", "waits", "failed", "ended"]


@dataclass
class _Peer:
    """The state of another rank, as far as known.

    Attributes:
        name: as errors call it.
        link: to it; None once it has left.
        state: the last that it said, and for how many seconds it had lasted.
        call: what it is called for all ranks to do; empty where it is not said.
        failed: the last call that it met an error in, by its number among those of all ranks; or _FOR_GOOD.
        silent: seconds without a word.
    """

    name: str
    link: socket.socket | None
    state: State = "works"
    seconds: float = 0.0
    call: str = ""
    limit: float = SILENCE
    failed: int = 0
    text: str = ""
    silent: float = 0.0
    unread: bytes = field(default=b"", repr=False)

    @property
    def has_left(self) -> bool:
        """True if it may be gone: it has said that it ends."""
        return self.failed == _FOR_GOOD


class Heartbeat:
    """The words of one rank, and what it hears of the others.

    Args:
        rank: of this process.
        gather: a value of each rank to all of them; all ranks make theirs at the same time.
        local: whether all ranks are on one host.
        end: called, in another thread, with a line on the rank that is at fault; it ends the job.
        ends: whether this process is about to end, in which Python starts no threads: leave_judged does all then.

    Attributes:
        is_heard: whether all ranks have found the first one.
    """

    def __init__(
        self, rank: int, gather: Callable[[Any], Sequence[Any]], local: bool, end: Callable[[str], None], ends: bool
    ) -> None:
        self._rank, self._end = rank, end
        self._lock = threading.Lock()
        self._state: State = "works"
        self._since, self._text, self._called = time.monotonic(), "", ""
        self._call = self._failed = 0
        #: Seconds of the longest part of a step between two exchanges; the first step's, until there is another.
        self._longest, self._is_measured = 0.0, False
        name = f"rank {rank} (process {os.getpid()} on {socket.gethostname()})"
        address: tuple[str, int, str] | None = None
        server: socket.socket | None = None
        if rank == 0:
            server = socket.create_server(("127.0.0.1" if local else "", 0), backlog=1024)
            address = "127.0.0.1" if local else socket.gethostname(), server.getsockname()[1], secrets.token_hex(16)
        every = gather((name, address))
        self._names, (host, port, token) = [own for own, _ in every], every[0][1]
        self._peers: dict[int, _Peer] = {}
        if server is None:
            with contextlib.suppress(OSError):
                link = socket.create_connection((host, port), _CONNECT)
                link.sendall(f"{token} {rank}\n".encode())
                self._peers[0] = _Peer(self._names[0], link)
        else:
            with server, contextlib.suppress(OSError):
                self._accept(server, token, self._names)
        heard = gather(set(self._peers))
        self.is_heard = heard[0] == set(range(1, len(every))) and all(heard)
        self._is_over, self._is_stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._talk, name="blobnet-heartbeat", daemon=True)
        if self.is_heard:
            for peer in self._peers.values():
                assert peer.link is not None, "it has just been made"
                peer.link.setblocking(False)
            if not ends:
                self._thread.start()

    def _accept(self, server: socket.socket, token: str, names: Sequence[str]) -> None:
        """Takes the calls of all other ranks; who does not know the token is none."""
        last = time.monotonic() + _CONNECT
        while len(self._peers) < len(names) - 1:
            server.settimeout(max(0.01, last - time.monotonic()))
            link, _ = server.accept()
            link.settimeout(1.0)
            with contextlib.suppress(OSError, ValueError):
                said, _, number = link.makefile("r").readline(200).partition(" ")
                if hmac.compare_digest(said.encode(), token.encode()) and 0 < int(number) < len(names):
                    self._peers[int(number)] = _Peer(names[int(number)], link)
                    continue
            link.close()

    def stop_waiting(self, seconds: float) -> bool:
        """Has the main thread stay for good where it waits for others, now or within some seconds; whether it does.

        From then on what it works on may be used by another thread, which ends the job.
        """
        last = time.monotonic() + seconds
        while True:
            with self._lock:
                self._is_stopped, state = True, self._state
            if state in ("waits", "failed", "ended") or time.monotonic() > last:
                return state == "waits"
            time.sleep(0.05)

    # -- what the main thread does -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def doing(self, state: State, call: str = "") -> Iterator[None]:
        """Note within that the main thread does ``state``, in a call of that name."""
        before = self._turn(state, call=call)
        if before == "failed":  # This rank is done with that, and not about to end.
            before = "works"
            self._say()
        try:
            yield
        finally:
            self._turn(before)

    @property
    def waits(self) -> bool:
        """True if the main thread waits for others."""
        return self._state == "waits"

    def begin(self) -> None:
        """A call that all ranks make begins; what the main thread has met before is done with."""
        self._call += 1
        if self._state == "failed":
            self._turn("works")

    def fail(self, text: str) -> None:
        """The main thread has met an error in a call, which the others may not know of."""
        self._failed = self._call
        self._turn("failed", text)
        self._say()

    def leave(self) -> None:
        """Says that this rank ends."""
        self._is_over.set()
        self._say_farewell()

    def leave_judged(self) -> None:
        """Leaves as the process ends; after an error once the first rank has judged it, which itself leaves last.

        NOTE: mpiexec ends all ranks as soon as one has failed, and MPI_Finalize may not wait for the others (MPICH's
        through TCP, now and then).
        """
        self._say_farewell()
        if self.is_heard and self._thread.ident is None:
            self._talk(ends=True)
        while self._thread.is_alive() and not self._may_leave:
            time.sleep(0.05)
        self.leave()
        for link in self._links:
            with contextlib.suppress(OSError):  # It is gone already.
                link.shutdown(socket.SHUT_WR)

    def _say_farewell(self) -> None:
        if self._state != "failed":
            self._turn("ended")
        self._failed = _FOR_GOOD
        self._say()

    @property
    def _may_leave(self) -> bool:
        """True if no other rank waits for this one; all but the first rank ask the first one."""
        if self._rank:
            return self._state == "ended" or not self._links
        return all(peer.has_left for peer in self._peers.values())

    def _turn(self, state: State, text: str = "", call: str = "") -> State:
        with self._lock:
            before = self._state
            if not self._stays:
                now = time.monotonic()
                if before in ("begins", "steps"):
                    is_longest = now - self._since > self._longest
                    if is_longest or (before == "steps" and not self._is_measured):
                        self._longest = now - self._since
                    self._is_measured = before == "steps"
                self._state, self._since, self._text, self._called = state, now, text, call
            stays = self._stays
        while stays:
            time.sleep(1)  # Until the other thread has ended the job.
        return before

    @property
    def _stays(self) -> bool:
        """True if the thread that asks waits for others, and is to go on doing so."""
        return self._is_stopped and self._state == "waits" and threading.current_thread() is not self._thread

    @property
    def _links(self) -> list[socket.socket]:
        """To those who have not left."""
        return [link for link in [peer.link for peer in self._peers.values()] if link is not None]

    @property
    def _limit(self) -> float:
        """Seconds of a step in which others may wait for this rank."""
        return max(SILENCE, _SLOWER * self._longest)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _talk(self, *, ends: bool = False) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                assert peer.link is not None, "nobody has left yet"
                selector.register(peer.link, selectors.EVENT_READ, peer)
            while not ((ends and self._may_leave) or self._is_over.is_set()):
                started = time.monotonic()
                self._say()
                # NOTE: who was stopped for an hour, with all others (Ctrl-Z), has not waited for an hour.
                while (left := started + INTERVAL - time.monotonic()) > 0 and not self._is_over.is_set():
                    for key, _ in selector.select(left):
                        if not self._hear(key.data):
                            selector.unregister(key.fileobj)
                    fault = self._lost()
                    if fault is not None or (ends and self._may_leave):
                        break
                for peer in self._peers.values():
                    peer.silent += INTERVAL
                fault = self._lost() or self._judged()
                if fault is not None and not self._is_over.is_set():
                    self._end(fault)
                    return

    def _say(self) -> None:
        with self._lock:  # Words of two threads go out in the order of their states.
            seconds = time.monotonic() - self._since
            word = {"state": self._state, "seconds": seconds, "limit": self._limit, "failed": self._failed}
            line = json.dumps({**word, "call": self._called, "text": self._text[:_MAX_TEXT]}).encode() + b"\n"
            for link in self._links:
                with contextlib.suppress(OSError):  # It is gone, or hears nothing any more, which the reader finds.
                    link.send(line)

    def _hear(self, peer: _Peer) -> bool:
        """Takes what a rank has said; whether there may be more."""
        assert peer.link is not None, "who has left is not read"
        try:
            received = peer.link.recv(_MAX_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            received = b""
        *lines, peer.unread = (peer.unread + received).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # A part of a word, of one whose line was full.
                word = json.loads(line)
                peer.state, peer.seconds, peer.text = word["state"], float(word["seconds"]), str(word["text"])
                peer.limit, peer.failed, peer.silent = float(word["limit"]), int(word["failed"]), 0.0
                peer.call = str(word["call"])
        if not received:
            peer.link = None
        return bool(received)

    def _lost(self) -> str | None:
        """A line on a rank that is gone: it was killed, or its host is."""
        for peer in self._peers.values():
            if peer.link is None and not peer.has_left:
                if peer.state == "failed":
                    return f"{peer.name}: {peer.text}"
                return f"{peer.name} has ended without a word: it was killed, or its host is lost"
        return None

    def _judged(self) -> str | None:
        """A line on the rank that is at fault, if one is."""
        for peer in self._peers.values():
            if peer.silent > SILENCE and not peer.has_left:
                return f"{peer.name} has said nothing for {peer.silent:.0f} s: it was stopped, or its host is lost"
        if self._rank:
            return None
        with self._lock:
            seconds = time.monotonic() - self._since
            me = _Peer(self._names[0], None, self._state, seconds, self._called, self._limit, self._failed, self._text)
        every = [me, *self._peers.values()]
        waiting = _longest(peer for peer in every if peer.state == "waits")
        staying = _longest(peer for peer in every if peer.state in ("waits", "failed"))
        called = [peer for peer in every if peer.state == "waits" and peer.call]
        is_apart = 0 < len(called) < len(every) and all(peer.state == "waits" for peer in every)
        if is_apart and min(peer.seconds for peer in every) > SILENCE:
            return f"{called[0].name} is alone in {called[0].call}, and the others wait elsewhere: {ALONE_RULE}"
        for peer in every:
            # Who has met an error in the same call is done with that, and waits for something else. An old word counts
            # for nothing: a rank may have waited for long, and meet the same error now.
            heard = [other for other in every if other.state == "waits" and other.silent <= INTERVAL]
            unaware = _longest(other for other in heard if other.failed != peer.failed)
            if peer.state == "failed" and min(unaware, peer.seconds) > PATIENCE:
                return f"{peer.name}: {peer.text}"
            if peer.state == "ended" and waiting > SILENCE:
                return f"{peer.name} has ended, and others wait for it{f' in {called[0].call}' if called else ''}"
            if peer.state == "steps" and min(staying, peer.seconds) > peer.limit:
                rule = "its device, or a disk, does not answer"
                return f"{peer.name} is in a step for {peer.seconds:.0f} s, and others wait for it: {rule}"
        return None


def _longest(peers: Iterable[_Peer]) -> float:
    """Seconds for which they have done what they do."""
    return max((peer.seconds for peer in peers), default=0.0)
