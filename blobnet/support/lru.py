"""A dict of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by key, of which those that were asked for longest ago are forgotten; for several threads.

    Args:
        room: the most values.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._values: dict[Key, Value] = {}  # The latest comes last.
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._values))

    def get(self, key: Key) -> Value | None:
        """The value of a key, which is the latest from now on; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            value = self._values[key] = self._values.pop(key)
            return value

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            self._forget()

    def limit(self, room: int) -> None:
        """Sets the most values."""
        with self._lock:
            self._room = room
            self._forget()

    def _forget(self) -> None:
        while len(self._values) > self._room:
            del self._values[next(iter(self._values))]
