"""Dicts of bounded size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from blobnet.support.lru import LRUCache


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    values: LRUCache[str, int] = LRUCache(3)
    for number, name in enumerate("abc"):
        values[name] = number
    assert (len(values), values.get("a"), values.get("d")) == (3, 0, None)
    values["d"] = 3  # a is younger than b now.
    assert [name in values for name in "abcd"] == [True, False, True, True]
    values["c"] = 7
    values["e"] = 4
    assert [values.get(name) for name in "abcde"] == [None, None, 7, 3, 4]
    values.limit(1)
    assert (len(values), values.get("e")) == (1, 4)
    values.limit(2)
    values["f"] = 5
    assert len(values) == 2


def test_several_threads() -> None:
    values: LRUCache[int, int] = LRUCache(10)

    def work(first: int) -> bool:
        for step in range(5000):
            key = (first * 7 + step) % 25
            values[key] = key
            if values.get((key + 3) % 25) not in (None, (key + 3) % 25):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert len(values) == 10
