"""One of two ranks ends, fails, hangs or forks in code of its own: the others hear of it, and of nothing else."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from blobnet.device.device import Device
from blobnet.parallel import heartbeat
from tests.ranks import mpiexec, needs_mpi

#: What is in front of all: a training of two ranks, of which ``mine`` is the one that is not as the other.
START = """
import atexit, os, signal, sys, time
from blobnet.parallel import heartbeat
from blobnet.training import training_step
from blobnet.callbacks import Callback
from blobnet.parallel.world import World
from tests.faults.test_lost_ranks import SETTINGS, X, Y, network

heartbeat.SILENCE, heartbeat.INTERVAL, heartbeat.PATIENCE = 2.0, 0.2, 1.0
mine, model = World.current().rank == int(sys.argv[1]), network()

class At(Callback):
    def __init__(self, number, act):
        self.number, self.act = number, act
    def step_end(self, progress):
        if progress.trainer.step.number == self.number:
            self.act()

def fail():
    raise ValueError("all meet it")

def fit(*callbacks):
    model.fit(X, Y, epochs=5, callbacks=callbacks, **SETTINGS)

def all_fail():
    try:
        fit(At(3, fail))
    except ValueError:
        pass
"""

ENDS = """
fit()
if not mine:
    model.evaluate(X, Y)
"""

RAISES_BEFORE_ALL = """
if mine:
    fail()
fit()
"""

#: Before START, which begins MPI.
BEFORE_MPI = """
import os, sys
from blobnet.parallel import heartbeat
heartbeat.SILENCE, heartbeat.INTERVAL, heartbeat.PATIENCE = 2.0, 0.2, 1.0
if os.environ["PMI_RANK"] == sys.argv[1]:
    {}
"""

PREDICTS_ALONE = """
fit(*[At(3, lambda: model.predict(X))] * mine)
"""

#: Each rank stays for a second when it has said its error: mpiexec ends the others as soon as one has ended.
PREDICTS_BEFORE = """
heartbeat.INTERVAL, heartbeat.PATIENCE = 1.0, 3.0
if mine:
    model.predict(X)
if sys.argv[2] == "late":
    time.sleep(4)  # The other one has waited for longer than PATIENCE when both meet the error.
fit()
"""

#: Has a rank hang in its seventh step.
HANG = """
compute = training_step.TrainingStep.compute_gradients
def hang(self, *arguments, **named):
    if mine and self.number == 6:
        time.sleep(600)
    return compute(self, *arguments, **named)
training_step.TrainingStep.compute_gradients = hang
"""

HANGS_BEHIND_AN_ERROR = f"""
{HANG}
fit(*[At(6, fail)] * (not mine))
"""

ENDS_BEHIND_AN_ERROR_THAT_THE_OTHER_CATCHES = """
if mine:
    fit(At(3, fail))
all_fail()
model.evaluate(X, Y)
"""

STOPS_BEHIND_AN_ERROR_THAT_ALL_CATCH = """
all_fail()
model.evaluate(X, Y)
if mine:
    os.kill(os.getpid(), signal.SIGSTOP)
model.evaluate(X, Y)
"""

IS_SLOW_BEHIND_AN_ERROR_THAT_ALL_CATCH = """
all_fail()
if mine:
    time.sleep(3)
model.evaluate(X, Y)
"""

FORKS = """
def fork():
    time.sleep(0.5)
    if not os.fork():
        atexit._run_exitfuncs()
        os._exit(0)
fit(*[At(2, fork)] * mine, At(3, lambda: time.sleep(3)))
"""

SPAWNS = """
from multiprocessing import get_context
def work(samples):
    return World.current().size, network().predict(samples).tobytes()
if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        size, predicted = pool.apply(work, [X])
    assert (size, World.current().size) == (1, 2)
    assert predicted == model.predict(X).tobytes()
"""


def run(device: Device, folder: Path, code: str, rank: int) -> tuple[int, str]:
    """The status, and what was said of the rank."""
    path = folder / "train.py"
    path.write_text(code if START in code else START + code)
    done = mpiexec(2, device, path, rank)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode, "\n".join(said)


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (ENDS, " has ended, and others wait for it in evaluate"),
        (RAISES_BEFORE_ALL, ": all meet it"),
        (BEFORE_MPI.format("sys.exit()") + START + ENDS, " has ended, and others wait for it in fit"),
        (BEFORE_MPI.format("raise ValueError('an own\\nmistake')") + START + ENDS, ": an own mistake"),
        (PREDICTS_ALONE, f" is alone in predict, and the others wait elsewhere: {re.escape(heartbeat.ALONE_RULE)}"),
        (ENDS_BEHIND_AN_ERROR_THAT_THE_OTHER_CATCHES, ": all meet it"),
        (STOPS_BEHIND_AN_ERROR_THAT_ALL_CATCH, r" has said nothing for \d s: it was stopped, or its host is lost"),
    ],
    ids=[
        *("ends", "raises", "ends before MPI", "raises before MPI", "predicts alone", "ends behind an error"),
        "stops behind an error",
    ],
)
def test_the_others_end_in_a_line(device: Device, tmp_path: Path, code: str, fault: str, rank: int) -> None:
    status, said = run(device, tmp_path, code, rank)
    assert re.fullmatch(rf"error: rank {rank} \(process \d+ on \S+\){fault}\.", said)
    assert status == 1


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_says_no_more_before_mpi(device: Device, tmp_path: Path, rank: int) -> None:
    """It ends before it has imported blobnet, by os._exit, which nobody hears."""
    ends = f"import os, sys\nif os.environ['PMI_RANK'] == sys.argv[1]:\n    os._exit({3 * rank})\n"
    quick = "from blobnet.parallel import mpiexec\nmpiexec._LOOK_SECONDS, mpiexec._MISSING_SECONDS = 0.2, 0.5\n"
    status, said = run(device, tmp_path, ends + quick + START + ENDS, rank)
    assert re.fullmatch(rf"error: rank {rank} \(on \S+\) has ended before it began MPI, and others wait for it\.", said)
    assert status == (3 if rank else 1)


@needs_mpi
@pytest.mark.parametrize("when", ["at once", "late"])
def test_calls_that_differ_are_named(device: Device, tmp_path: Path, when: str) -> None:
    """Who says it first waits until the other one has said it, too."""
    path = tmp_path / "train.py"
    path.write_text(START + PREDICTS_BEFORE)
    done = mpiexec(2, device, path, 1, when)
    rule = (
        r"OptionError: rank 1: all ranks must make the same calls, .+ rank_1=predict, rank_0=fit\. Hint: what one rank"
    )
    assert len(re.findall(rule, done.stderr)) == 2  # Each rank says so.
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("failed_for", "silent", "is_judged"), [(0.0, 0.0, False), (9.0, 0.0, True), (9.0, 9.0, False)]
)
def test_an_old_word_judges_nobody(failed_for: float, silent: float, is_judged: bool) -> None:
    """A rank that has waited for long may meet the same error now, and has not said so yet."""
    first = heartbeat.Heartbeat.__new__(heartbeat.Heartbeat)
    other = heartbeat._Peer("rank 1", None, "waits", seconds=30.0, call="predict", failed=1, silent=silent)
    own = {"_rank": 0, "_state": "failed", "_text": "no", "_failed": 2, "_called": "", "_longest": 0.0}
    own |= {"_lock": threading.RLock(), "_names": ["rank 0", "rank 1"], "_peers": {1: other}}
    vars(first).update(own, _since=time.monotonic() - failed_for)
    assert first._judged() == ("rank 0: no" if is_judged else None)


#: A command of which one rank is told to end while it waits for the other one, which never begins MPI.
TOLD = """
import os, sys, threading, time
from pathlib import Path
import blobnet
if os.environ["PMI_RANK"] == "1":
    while not Path("told").exists():
        time.sleep(0.05)
    os._exit(0)

number = int(sys.argv.pop())

def tell():
    while not any(thread.name == "blobnet-mpi" for thread in threading.enumerate()):
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(os.getpid(), number)
    time.sleep(0.5)
    Path("told").touch()

threading.Thread(target=tell).start()
from blobnet.__main__ import main
status = main()
print("heard", status)
sys.exit(status)
"""


@needs_mpi
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_heard_before_all_have_come(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mpiexec(2, device, "-c", TOLD, "evaluate", "a.h5", "--dataset", "digits", int(number))
    assert f"heard {status}" in done.stdout, done.stderr
    assert done.stderr.count("interrupted") == 1
    assert "Traceback" not in done.stderr


@needs_mpi
def test_who_hangs_while_another_stays_with_an_error(device: Device, tmp_path: Path) -> None:
    status, said = run(device, tmp_path, HANGS_BEHIND_AN_ERROR, 1)
    assert re.fullmatch(r"error: rank 1 \(.+\) is in a step for \d s, and others wait for it: its device, .+\.", said)
    assert status == 1


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "code", [IS_SLOW_BEHIND_AN_ERROR_THAT_ALL_CATCH, FORKS, SPAWNS], ids=["is slow", "forks", "spawns"]
)
def test_nobody_is_blamed(device: Device, tmp_path: Path, code: str, rank: int) -> None:
    assert run(device, tmp_path, code, rank) == (0, "")


#: ``blobnet train`` on ranks of which one hangs in a step.
HANGS = f"""
import sys, time
from blobnet.training import training_step
from blobnet.command_line.main import main
from blobnet.parallel.world import World
mine = World.current().rank == 1
{HANG}
sys.exit(main("train lenet5 --dataset digits --batch-size 512 --epochs 9 --timeout 3 --output a.h5".split()))
"""


@needs_mpi
def test_the_rank_that_hangs_is_out_of_time(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = mpiexec(2, device, "-c", HANGS)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert said.startswith("error: on rank 1: --timeout: a step must end in that time")
    assert said.endswith("The last checkpoint is a.h5 (epoch 2).")
