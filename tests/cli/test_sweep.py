"""blobnet sweep, with the real Optuna and a tiny network."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import blobnet as bn
from blobnet.command_line.sweep import _ranges, _Sweep

optuna = pytest.importorskip("optuna", reason="optuna is not installed")
NET = """
import blobnet as bn
from blobnet import layers

def net(input_shape, classes, seed):
    return bn.Sequential([layers.Input(*input_shape), layers.Flatten(), layers.Dense(classes)], seed=seed)
"""
#: A tiny training, and what is varied.
TRAIN = ["train", "net.py:net", "--dataset", "digits", "--epochs", "2", "--batch-size", "256"]
VARIED = ["--learning-rate", "1e-3..1e-1:log", "--optimizer", "adam,sgd"]


@pytest.fixture(autouse=True)
def network(run) -> None:
    Path("net.py").write_text(NET)


def sweep(run, trials: int, *more: str, study: str = "s.db", command: tuple[str, ...] = (*TRAIN, *VARIED)):
    return run("sweep", "--study", study, "--trials", str(trials), *more, *command)


def study(path: str = "s.db", name: str = "sweep"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def test_the_best_is_kept_and_its_command_trains_it_again(run) -> None:
    done = sweep(run, 3)
    assert done.status == 0, done.err
    trials = study().trials
    lines = done.out.splitlines()
    assert len(trials) == 3
    for number, trial in enumerate(trials):
        rate, optimizer = trial.params["--learning-rate"], trial.params["--optimizer"]
        assert 1e-3 <= rate <= 1e-1
        assert lines[number].startswith(f"trial {number}: validation_loss {trial.value:.4g} (best ")
        assert lines[number].endswith(f"; learning-rate {rate!r}, optimizer {optimizer}")
    best = min(trials, key=lambda trial: trial.value)
    kept = Path(f"s-sweep-{best.number}.h5")
    assert lines[3] == (
        f"best: trial {best.number} of 3 trials (3 complete), validation_loss {best.value:.4g}; saved {kept}"
    )
    assert sorted(Path().glob("*.h5")) == [kept]
    again = shlex.split(lines[4])
    assert again[0] == "blobnet"
    assert run(*again[1:], "--output", "again.h5").status == 0
    ours, theirs = bn.load("again.h5"), bn.load(kept)
    assert min(ours.history["validation_loss"]) == best.value
    for name, values in theirs.weights.items():
        assert (ours.weights[name] == values).all()


def test_a_sweep_goes_on(run) -> None:
    assert sweep(run, 1).status == 0
    done = sweep(run, 3)
    assert [line.split(":")[0] for line in done.out.splitlines()[:2]] == ["trial 1", "trial 2"]
    assert len(study().trials) == 3
    finished = sweep(run, 3)
    assert finished.out.splitlines() == done.out.splitlines()[2:]


def test_all_kinds_of_ranges(run) -> None:
    varied = ("--batch-size", "255..256", "--lookahead", "2,3", "--weight-decay=0..0.1", "--warmup-epochs", "0.1..0.5")
    done = sweep(run, 2, command=(*TRAIN[:6], *varied))
    assert done.status == 0, done.err
    for trial in study().trials:
        assert 255 <= trial.params["--batch-size"] <= 256
        assert isinstance(trial.params["--batch-size"], int)
        assert trial.params["--lookahead"] in ("2", "3")
        assert 0 <= trial.params["--weight-decay"] <= 0.1


def test_failing_trials_are_said_and_counted(run) -> None:
    """At rates at which the loss explodes."""
    done = sweep(run, 2, command=(*TRAIN, "--optimizer", "sgd", "--learning-rate", "1e37..1e38"))
    assert done.status == 0, done.err
    *lines, last = done.out.splitlines()
    assert last == "no best model yet: 2 trials (2 fail)"
    for number, (line, trial) in enumerate(zip(lines, study().trials, strict=True)):
        assert line.startswith(f"trial {number}: failed: training: the loss must stay finite. Received epoch=1, ")
        assert line.endswith(f"; learning-rate {trial.params['--learning-rate']!r}")
        assert trial.state == optuna.trial.TrialState.FAIL
        assert trial.user_attrs["error"].startswith("training: the loss must stay finite.")
    assert not list(Path().glob("*.h5"))


def test_trials_are_pruned(run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = optuna.create_study
    pruner = optuna.pruners.ThresholdPruner(upper=0.0)
    monkeypatch.setattr(optuna, "create_study", lambda **given: plain(**given, pruner=pruner))
    done = sweep(run, 1)
    assert done.out.startswith("trial 0: pruned after epoch 1; learning-rate ")
    assert done.out.endswith("no best model yet: 1 trial (1 pruned)\n")
    assert not list(Path().glob("*.h5"))


def test_two_processes_share_a_study() -> None:
    command = [sys.executable, "-m", "blobnet", "sweep", "--study", "s.db", "--trials", "4", *TRAIN, *VARIED]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=300) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    trials = study().trials
    assert 4 <= len(trials) <= 5
    assert sorted(re.findall(r"^trial (\d+):", "".join(out for out, _ in said), re.M)) == [
        str(n) for n in range(len(trials))
    ]
    best = min((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value)
    assert [path.name for path in Path().glob("*.h5")] == [f"s-sweep-{best.number}.h5"]


def test_a_better_trial_that_ends_meanwhile_is_kept(run) -> None:
    """Another process ends its trial while this one asks which models to remove."""
    assert sweep(run, 1).status == 0
    ours, theirs = Path("s-sweep-0.h5"), Path("s-sweep-1.h5")
    trial = study().ask()
    theirs.touch()
    words = [*TRAIN, *VARIED]
    ended = _Sweep(Path("s.db"), "sweep", words, _ranges(words))

    class Meanwhile:
        study_name = "sweep"

        @property
        def trials(self) -> list:
            found = study().trials
            if not found[trial.number].state.is_finished():
                study().tell(trial.number, -1.0)
            return found

    ended._study = Meanwhile()
    ended._remove_others()
    assert ours.exists()
    assert theirs.exists()
    ended._remove_others()
    assert not ours.exists()
    assert theirs.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_with_the_best_so_far() -> None:
    command = [sys.executable, "-m", "blobnet", "sweep", "--study", "s.db", "--trials", "99", *TRAIN, *VARIED]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    first = running.stdout.readline()
    assert first.startswith("trial 0: validation_loss ")
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "best: trial " in out
    assert "\nblobnet train net.py:net " in out
    assert err.endswith("interrupted; the same command goes on with s.db\n")
    ended = sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in study().trials)
    assert len(list(Path().glob("*.h5"))) == 1
    assert ended >= 1


def test_ctrl_c_right_after_a_trial_was_told(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial is complete, and stays so."""
    tell = optuna.Study.tell

    def interrupted(*arguments: object, **options: object) -> None:
        tell(*arguments, **options)
        if not options:
            raise KeyboardInterrupt

    monkeypatch.setattr(optuna.Study, "tell", interrupted)
    done = sweep(run, 9)
    assert done.status == 130
    assert done.err.endswith("interrupted; the same command goes on with s.db\n")
    assert [trial.state for trial in study().trials] == [optuna.trial.TrialState.COMPLETE]
    assert [path.name for path in Path().glob("*.h5")] == ["s-sweep-0.h5"]


@pytest.mark.parametrize(
    ("command", "status", "rule"),
    [
        (
            ["evaluate", "m.h5"],
            1,
            "what is swept must be a command of blobnet train. Received evaluate. Hint: blobnet sweep",
        ),
        (TRAIN, 1, "an option must have a range or choices. Hint: --learning-rate 1e-4..1e-1:log"),
        (
            [*TRAIN, "--learning-rat", "1..2", *VARIED],
            2,
            "unknown argument '--learning-rat': did you mean '--learning-rate'",
        ),
        ([*TRAIN, "--learning-rate", "1e-1..1e-4"], 1, "--learning-rate: a range must go up, and begin above 0 where"),
        ([*TRAIN, "--learning-rate", "0..1:log"], 1, "--learning-rate: a range must go up, and begin above 0 where"),
        ([*TRAIN, "--learning-rate", "1e-4..big"], 2, "argument --learning-rate: it must be a number, not 'big'"),
        (
            [*TRAIN, "--lookahead", "1..2.5"],
            2,
            "argument --lookahead: it must be a whole number of at least 1, not '2.5'",
        ),
        ([*TRAIN, "--optimizer", "adam,sdg"], 2, "argument --optimizer: unknown name 'sdg': did you mean 'sgd'?"),
        ([], 1, "what is swept must be a command of blobnet train. Received nothing. Hint: blobnet sweep --study "),
        ([*TRAIN, "--optimizer", "adam..sgd"], 1, "--optimizer: only numbers have a range; others have choices: a,b."),
        ([*TRAIN, "--seed", "1..5"], 1, "--seed: it must be the same in all trials, so that their losses compare."),
        ([*TRAIN, *VARIED, "--resume"], 1, "--resume: a sweep goes without it: each trial is a training with"),
        ([*TRAIN, *VARIED, "--output", "a.h5"], 1, "--output: a sweep goes without it: each trial is a training with"),
        ([*TRAIN, *VARIED, "--momentum", "0.9"], 2, "--momentum needs --optimizer"),
        ([*TRAIN[:3], "nothing.npz", *VARIED], 1, "nothing.npz: there must be such a file or folder"),
    ],
)
def test_commands_that_do_not_do(run, command: list[str], status: int, rule: str) -> None:
    done = sweep(run, 2, command=tuple(command))
    assert done.status == status, done.err
    assert rule in done.err


def test_a_study_of_another_command(run) -> None:
    wrong = sweep(run, 1, command=(*TRAIN[:3], "nothing.npz", *VARIED))
    assert wrong.status == 1
    assert sweep(run, 2).status == 0  # What was wrong may be put right.
    other = sweep(run, 2, command=(*TRAIN, "--learning-rate", "1e-3..1e-2:log"))
    assert other.status == 1
    assert "a study must go on with the command that it began with. Received saved=train net.py:net" in other.err
    assert sweep(run, 1, "--name", "narrow", command=(*TRAIN, "--learning-rate", "1e-3..1e-2:log")).status == 0
    assert len(study(name="narrow").trials) == 1


def test_a_file_that_is_no_study(run) -> None:
    assert "--study: its name must have no ?, which" in sweep(run, 1, study="a?b.db").err
    Path("s.db").write_bytes(b"hello" * 999)
    done = sweep(run, 1)
    assert done.status == 1
    assert "error: s.db: it must be a file of Optuna's studies. Received reason=" in done.err


def test_without_optuna(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = sweep(run, 1)
    assert done.status == 1
    assert "sweep: it needs optuna" in done.err
    assert 'pip install "blobnet[optuna]"' in done.err
    assert not Path("s.db").exists() or os.name == "nt"
