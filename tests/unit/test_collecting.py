"""When Python looks for objects that only refer to each other."""

from __future__ import annotations

import gc

import pytest

from blobnet.support.garbage import gc_paused


def test_it_is_put_off_and_taken_up_again() -> None:
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), gc_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_has_ended_it_finds_it_so() -> None:
    gc.disable()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
