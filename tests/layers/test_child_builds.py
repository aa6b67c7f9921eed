"""Programs that child processes build first, so that a compiler that crashes takes nobody else with it."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import re
import sys
import tempfile
import time
import warnings
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blobnet import Sequential, layers
from blobnet.device import child_builds, tuning
from blobnet.device.child_builds import Trial
from blobnet.device.compiler import Compiler
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning, BuildError
from blobnet.launch.task import BrokenVariant, Variant
from blobnet.planning import make_plan
from blobnet.support import build_progress
from blobnet.support.child_process import Child
from blobnet.support.user_cache import cache_folder, write_entry

#: A child whose compiler fails on some sources.
FAULTY = """
import json, os, signal, sys; sys.path[:] = json.loads(sys.argv[1])
from blobnet.device import child_builds
from blobnet.device.compiler import Compiler
compile, built = Compiler.compile, []
def faulty(self, source, digest):
    if {condition}:
        print("a last word", file=sys.stderr, flush=True)
        print("said to nobody", flush=True)
        {death}
    built.append(source)
    return compile(self, source, digest)
Compiler.compile = faulty
child_builds.build_for_parent(sys.argv[2])
"""
#: A child that dies where it launches one of two kernels.
FATAL_LAUNCH = """
import json, os, signal, sys; sys.path[:] = json.loads(sys.argv[1])
from blobnet.device import child_builds
launch = child_builds.Trial.launch
def fatal(self, program, queue):
    if self.entry == "fall":
        {death}
    launch(self, program, queue)
child_builds.Trial.launch = fatal
child_builds.build_for_parent(sys.argv[2])
"""
#: NOTE: drivers handle SIGSEGV, and go on if nothing is wrong where it came.
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def source(number: int | str) -> str:
    """A program that fills a buffer with a number."""
    return f"__kernel void fill(__global int *values) {{ values[get_global_id(0)] = {number}; }}"


def value(device: Device, text: str) -> int:
    kernel = device.programs.kernel(text, "fill", "a kernel that fills")
    buffer = device.memory.allocate(4)
    kernel.set_args(buffer)
    device.queue.prepare(kernel, (1,), None)()
    return int(device.memory.read(buffer, 1, np.int32)[0])


@pytest.fixture
def fresh(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that has not built anything yet."""
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "tunings")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = Device(device.info)
    other.programs.compiler.folder = tmp_path / "programs"
    other.programs.compiler.folder.mkdir()
    return other


def make_faulty(monkeypatch: pytest.MonkeyPatch, condition: str, death: str = KILL) -> None:
    monkeypatch.setattr(child_builds, "_PROGRAM", FAULTY.format(condition=condition, death=death))


def test_children_build_and_leave_records(fresh: Device) -> None:
    sources = [source(number) for number in range(9)]
    seen = []
    fresh.programs.build_ahead([*sources, sources[0], source("nothing")], lambda *state: seen.append(state))
    assert (seen[0], seen[-1]) == ((0, 10), (10, 10))
    assert {later[0] - before[0] for before, later in itertools.pairwise(seen)} <= {*range(1, most_bundled(fresh) + 1)}
    compiler = fresh.programs.compiler
    found = {path.stem for path in compiler.folder.iterdir()}
    assert found == {*map(compiler.digest, sources)} | programs(fresh, sources)
    assert [value(fresh, text) for text in sources] == list(range(9))
    with pytest.raises(BuildError, match=r"(?s)must build the kernel\..*nothing"):
        fresh.programs.build(source("nothing"), "a kernel")
    seen.clear()
    again = Device(fresh.info)
    again.programs.compiler.folder = fresh.programs.compiler.folder
    again.programs.build_ahead(sources, lambda *state: seen.append(state))
    assert not seen, "what is on record needs no child"


def most_bundled(device: Device) -> int:
    """Sources that are built as one program."""
    return device.programs.compiler.traits.most_bundled


def programs(device: Device, sources: list[str]) -> set[str]:
    """The digests of the programs that sources were built in."""
    compiler = device.programs.compiler
    return {compiler.program_of(compiler.digest(text)) for text in sources}


def another(device: Device) -> Device:
    """As in the next process."""
    other = Device(device.info)
    other.programs.compiler.folder = device.programs.compiler.folder
    return other


def test_what_a_purpose_needed_is_loaded_beside_the_work(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if fresh.programs.compiler.traits.keeps_programs:
        pytest.skip("this driver keeps programs itself")
    sources = [source(number) for number in range(20, 24)]
    with fresh.programs.preload("a plan") as needed:
        assert not fresh.programs._loading
        fresh.programs.build_ahead(sources[:3])
        needed.update(sources[:3])
    fresh.programs.build_ahead(sources[3:])
    following = another(fresh)
    monkeypatch.setattr(Compiler, "from_source", None)  # All that follows has been built.
    with following.programs.preload("a plan") as needed:
        loads = dict(following.programs._loading)
        assert loads.keys() == programs(fresh, sources[:3])
        following.programs.build_ahead(sources)
        needed.update(sources[1:])
    assert not following.programs._loading
    (name,) = programs(fresh, sources[:1])
    assert following.programs.built.get(sources[0]).program is loads[name].result()
    assert [value(following, text) for text in sources] == [20, 21, 22, 23]
    with following.programs.preload("a plan"):
        assert not following.programs._loading, "they are there"
    last = another(fresh)
    with last.programs.preload("a plan") as needed:
        assert not last.programs._loading, "nothing was needed the last time"
    with last.programs.preload("another plan"):
        assert not last.programs._loading


def test_a_list_of_programs_that_is_damaged_or_outdated(fresh: Device) -> None:
    if fresh.programs.compiler.traits.keeps_programs:
        pytest.skip("this driver keeps programs itself")
    sources = [source(number) for number in range(24, 28)]
    with fresh.programs.preload("a plan") as needed:
        fresh.programs.build_ahead(sources)
        needed.update(sources)
    names = sorted(programs(fresh, sources))
    fresh.programs.compiler.record(names[0]).unlink()
    write_entry(fresh.programs.compiler.record(names[-1]), b"no binary of a program")
    following = another(fresh)
    with following.programs.preload("a plan") as needed:
        assert len(following.programs._loading) == len(names)
        following.programs.build_ahead(sources)
        needed.update(sources)
    assert [value(following, text) for text in sources] == [24, 25, 26, 27]
    (fresh.programs.compiler.folder / "a plan.programs").write_bytes(b"what somebody else has put there")
    following = another(fresh)
    with pytest.warns(match="an entry of the cache must be as it was written"), following.programs.preload("a plan"):
        assert not following.programs._loading


def test_an_error_ends_the_loads(fresh: Device) -> None:
    sources = [source(number) for number in range(20, 24)]
    with fresh.programs.preload("a plan") as needed:
        fresh.programs.build_ahead(sources)
        needed.update(sources)
    following = another(fresh)
    with pytest.raises(ZeroDivisionError), following.programs.preload("a plan"):
        raise ZeroDivisionError
    assert not following.programs._loading
    assert [value(following, text) for text in sources] == [20, 21, 22, 23]


def test_a_load_that_another_thread_has_given_up(fresh: Device) -> None:
    fresh.programs.build_ahead([source(28)])
    following, given_up = another(fresh), Future[Any]()
    given_up.cancel()
    following.programs._loading = {following.programs.compiler.digest(source(28)): given_up}  # It was built alone.
    following.programs.build_ahead([source(28)])
    assert value(following, source(28)) == 28


def test_a_terminal_sees_how_far_building_is(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fit, predict and evaluate; not where nothing is built, nor where fit shall be silent."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown() -> str:
        """What was written since, up to the last line, which nothing is left of."""
        *written, last = terminal.getvalue().split("\r")
        terminal.seek(terminal.truncate(0))
        assert not last
        assert not written or not written[-1].strip()
        return "\n".join(written)

    terminal = Terminal()
    monkeypatch.setattr(build_progress, "sys", SimpleNamespace(stderr=terminal))
    model = Sequential([layers.Input(3), layers.Dense(2)])
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.int32)
    model.predict(x, device=fresh)
    found = re.findall(r"compiling kernels (\d+)/(\d+) \(first run only\)", shown())
    assert int(found[0][1]) > 1
    steps = [int(done) for done, _ in found]
    assert found == [(str(done), str(steps[-1])) for done in sorted(set(steps))]
    assert steps[0] == 0
    assert all(1 <= later - before <= most_bundled(fresh) for before, later in itertools.pairwise(steps))
    model.predict(x, device=fresh)
    assert shown() == ""
    model.fit(x, y, device=fresh, verbose=False)
    assert shown() == ""
    assert list(fresh.programs.compiler.folder.iterdir()), "it has built something"
    Sequential([layers.Input(3), layers.Dense(4)]).fit(x, y, device=fresh)
    done = int(re.findall(r"compiling kernels ([1-9]\d*)/", shown())[0])
    assert done <= most_bundled(fresh)


@pytest.mark.parametrize(("death", "words"), [(KILL, "killed by SIGKILL"), ("os._exit(3)", "ended with status 3")])
def test_a_compiler_that_crashes(fresh: Device, monkeypatch: pytest.MonkeyPatch, death: str, words: str) -> None:
    make_faulty(monkeypatch, "'= 13;' in source or '= 14;' in source", death)
    sources = [source(number) for number in range(10, 20)]
    fresh.programs.build_ahead(sources)
    for text in sources:
        if "= 13;" in text or "= 14;" in text:
            with pytest.raises(BuildError) as caught:
                value(fresh, text)
            message = str(caught.value)
            assert message.startswith(
                f"a kernel that fills: the compiler of {fresh.info.name} must build the kernel, and crashed in a "
                "process of its own. Received options="
            )
            assert f"log=\n{words}\na last word" in message
            saved = Path(re.search(r"source=([^,]+\.cl),", message).group(1))
            assert saved.read_text() == fresh.programs.compiler.preamble + text
            saved.unlink()
        else:
            assert f"= {value(fresh, text)};" in text


def test_a_driver_that_crashes_at_the_first_launch(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children launch what some drivers compile only then; memory that a launch takes is there, and is 0."""
    compiler = fresh.programs.compiler
    monkeypatch.setattr(compiler, "traits", replace(compiler.traits, compiles_at_launch=True, most_bundled=1))
    if not fresh.is_host:  # What goes astray on another device is that one's error, which no process dies of.
        monkeypatch.setattr(child_builds, "_PROGRAM", FATAL_LAUNCH.format(death=KILL))
    good, bad = (
        f"__kernel void {entry}(__global int *values, const int w) {{ values[w * 1000000 + {cell}] += values[3]; }}"
        for entry, cell in (("fill", "7"), ("fall", "(1L << 60)"))
    )
    trial = Trial("fill", (1, 1, 1), (None, np.int32(9).tobytes()))
    assert pickle.loads(pickle.dumps(trial)) == trial
    trials = {good: trial, bad: replace(trial, entry="fall")}
    fresh.programs.build_ahead([good, bad], trials=lambda text: [trials[text]])
    fresh.programs.build(good, "a kernel")
    with pytest.raises(BuildError, match="and crashed in a process of its own"):
        fresh.programs.build(bad, "a kernel")
    assert compiler.record(compiler.digest(good)).exists()
    assert not compiler.record(compiler.digest(bad)).exists(), "the next process must not trust it"


def test_children_leave_nothing_to_compile_to_the_first_launch(fresh: Device) -> None:
    if not fresh.programs.compiler.traits.compiles_at_launch:
        pytest.skip("this driver compiles when it builds")
    cache = Path(os.environ.get("POCL_CACHE_DIR") or cache_folder().parent / "pocl" / "kcache")
    entry = f"fill_{time.time_ns()}"
    text = source(5).replace("fill", entry)
    fresh.programs.build_ahead([text], trials=lambda _: [Trial(entry, (1, 1, 1), (None,))])

    def compiled() -> list[Path]:
        return list(cache.glob(f"*/*/{entry}/*/*.so"))

    assert len(compiled()) == 1
    kernel = fresh.programs.kernel(text, entry, "a kernel")
    buffer = fresh.memory.allocate(4)
    kernel.set_args(buffer)
    fresh.queue.prepare(kernel, (1, 1, 1), (1, 1, 1))()
    fresh.queue.finish()
    assert len(compiled()) == 1


def test_a_source_is_not_blamed_for_what_came_before_it(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    make_faulty(monkeypatch, "len(built) == 2")
    monkeypatch.setattr(child_builds, "_SOURCES_OF_A_CHILD", 100)
    compiler = fresh.programs.compiler
    monkeypatch.setattr(compiler, "traits", replace(compiler.traits, most_bundled=1))
    sources = [source(number) for number in range(20, 27)]
    fresh.programs.build_ahead(sources)
    assert not fresh.programs.compiler.crashed
    assert len(list(fresh.programs.compiler.folder.iterdir())) == len(sources)


def test_children_that_died_while_they_waited_blame_nobody(fresh: Device) -> None:
    if not fresh.is_host:
        pytest.skip("children of GPUs do not wait")
    child_builds._IDLE.close()
    fresh.programs.build_ahead([source(number) for number in range(70, 80)])
    waiting = list(child_builds._IDLE._children)
    assert waiting
    for child in waiting:
        child.kill()
        child._process.wait()
    fresh.programs.build_ahead([source(number) for number in range(80, 84)])
    assert not fresh.programs.compiler.crashed
    sources = [source(number) for number in range(70, 84)]
    compiler = fresh.programs.compiler
    found = {path.stem for path in compiler.folder.iterdir()}
    assert found == {*map(compiler.digest, sources)} | programs(fresh, sources)


@pytest.mark.parametrize("cause", ["no interpreter", "no device", "a dead compiler"])
def test_where_no_child_works_programs_are_built_here(
    fresh: Device, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    if cause == "no interpreter":
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    else:
        monkeypatch.setattr(child_builds, "_PROGRAM", "raise SystemExit(4)" if cause == "no device" else KILL)
    fresh.programs.build_ahead([source(number) for number in range(30, 40)])
    assert not fresh.programs.compiler.crashed
    assert value(fresh, source(33)) == 33


def test_ctrl_c_ends_the_children(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    children = []
    start = Child.__init__

    def noted(self: Child, *arguments: object) -> None:
        start(self, *arguments)
        children.append(self._process)

    def interrupt(done: int, count: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(Child, "__init__", noted)
    make_faulty(monkeypatch, "'= 41;' in source or '= 42;' in source", "import time; time.sleep(1000)")
    compiler = fresh.programs.compiler
    monkeypatch.setattr(compiler, "traits", replace(compiler.traits, most_bundled=1))  # Who is done would be kept.
    with pytest.raises(KeyboardInterrupt):
        fresh.programs.build_ahead([source(number) for number in range(40, 50)], interrupt)
    deadline = time.monotonic() + 20
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children
    assert all(child.poll() is not None for child in children)
    assert value(fresh, source(43)) == 43


def test_children_look_for_modules_where_their_parent_does(
    fresh: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module in the working folder that has the name of another must not come before it."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong NumPy')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    fresh.programs.build_ahead([source(50)])
    assert len(list(fresh.programs.compiler.folder.iterdir())) == 1


def test_a_variant_that_crashes_the_compiler_is_left_out(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((6, 3, 7, 5), dtype=np.float32)

    def model() -> Sequential:
        return Sequential([layers.Input(3, 7, 5), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(3)], seed=5)

    wanted = model().predict(x, device=Device(fresh.info))
    plan = make_plan(model().graph, 6, tuning=fresh.tuning)
    call = next(call for _, call in plan.calls if call.task and call.task.family == "convolution")
    assert call.way
    assert call.direction == "forward"
    variant = call.way.variant
    make_faulty(monkeypatch, f"'void {call.source.entry}(' in source")
    with pytest.warns(
        BlobnetWarning, match=rf"^{variant} \(convolution forward\): .*and crashed in a process of its own"
    ):
        found = model().predict(x, device=fresh)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert fresh.tunings.broken == {BrokenVariant(Variant(variant), "convolution", "forward")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model().predict(x, device=fresh)


def test_strided_convolution_of_single_cells(device: Device) -> None:
    """On this one Intel's compiler (2026.22.10) died in the gathered variant."""
    model = Sequential([layers.Input(4, 1, 1), layers.Conv2D(4, 3, stride=2, padding=1, groups=4, name="c")], seed=1)
    x = np.random.default_rng(0).standard_normal((33, 4, 1, 1), dtype=np.float32)
    wanted = x * model.weights["c/weight"][:, 0, 1, 1].reshape(4, 1, 1) + model.weights["c/bias"].reshape(4, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The kernel itself must build.
        np.testing.assert_allclose(model.predict(x, device=device), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("are_kept", [True, False])
def test_children_go_home(fresh: Device, monkeypatch: pytest.MonkeyPatch, are_kept: bool) -> None:
    """They wait a while for more to build, but for those of GPUs; no file of theirs stays open."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("looks at files in /proc")
    files: set[Path] = set()
    start = Child.__init__

    def noted(self: Child, *arguments: object) -> None:
        start(self, *arguments)
        for file in (self._process.stdin, self._process.stdout, self._words):
            files.add((folder / str(file.fileno())).readlink())

    def still_open() -> set[Path]:
        """Files of children; what the driver opens and closes is its own."""
        found = set()
        for item in folder.iterdir():
            with contextlib.suppress(OSError):
                found.add(item.readlink())
        return found & files

    monkeypatch.setattr(Child, "__init__", noted)
    child_builds._IDLE.close()
    assert fresh.programs.keeps_children == fresh.is_host
    fresh.programs.keeps_children = are_kept
    fresh.programs.build_ahead([source(60)])
    assert len(files) == 3
    (child,) = child_builds._IDLE._children if are_kept else [None]
    assert bool(still_open()) == are_kept
    fresh.programs.build_ahead([source(61)])
    assert child_builds._IDLE._children == [child] * are_kept
    monkeypatch.setattr(child_builds, "_PATIENCE", 0.01)
    fresh.programs.build_ahead([source(number) for number in range(62, 70)])
    deadline = time.monotonic() + 20
    while (child_builds._IDLE._children or still_open()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not still_open()
    assert child is None or child._process.poll() == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
