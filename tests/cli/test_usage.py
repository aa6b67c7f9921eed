"""Help, wrong command lines, and what happens around every command."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import __version__, datasets
from blobnet.command_line import main
from blobnet.command_line.model_argument import known_models
from blobnet.optimizers import Optimizer

BLOBNET = [sys.executable, "-m", "blobnet"]
DIGITS = ["train", "lenet5", "--dataset", "digits"]
COUNT, POSITIVE = "it must be a whole number of at least 1", "a number above 0 and below 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "argument COMMAND: unknown name 'trian': did you mean 'train' or 'lr-find'?"),
        (
            ["xyz"],
            "argument COMMAND: unknown name 'xyz': known names: bench, compile, convert, devices, doctor, evaluate, "
            "inspect, lr-find, plan, predict",
        ),
        (["--verison"], "unknown argument '--verison': did you mean '--version'?"),
        (["train"], "the following arguments are required: --dataset"),
        (["train", "--dataset", "digits"], "the following arguments are required: MODEL (or --init-from FILE.h5)"),
        (["predict", "a.h5"], "the following arguments are required: IMAGE"),
        ([*DIGITS, "more"], "unknown argument 'more'"),
        ([*DIGITS, "--epoch", "3"], "unknown argument '--epoch': did you mean '--epochs'"),
        ([*DIGITS, "--epoch=3"], "unknown argument '--epoch=3': did you mean '--epochs'"),
        ([*DIGITS, "--epochs", "0"], f"argument --epochs: {COUNT}, not '0'"),
        ([*DIGITS, "--batch-size", "x"], f"argument --batch-size: {COUNT}, not 'x'"),
        ([*DIGITS, "--seed", "-1"], "argument --seed: it must be a whole number from 0 to below 2^63, not '-1'"),
        ([*DIGITS, "--seed", "one"], "argument --seed: it must be a whole number from 0 to below 2^63, not 'one'"),
        ([*DIGITS, "--learning-rate", "fast"], "argument --learning-rate: it must be a number, not 'fast'"),
        ([*DIGITS, "--validation-fraction", "1"], f"argument --validation-fraction: it must be {POSITIVE}, not '1'"),
        ([*DIGITS, "--validation-fraction", "x"], f"argument --validation-fraction: it must be {POSITIVE}, not 'x'"),
        (
            [*DIGITS, "--image-size", "2x8x8"],
            "argument --image-size: it must be HEIGHTxWIDTH such as 64x48, or 64",
        ),
        (
            [*DIGITS, "--optimizer", "adm"],
            "argument --optimizer: unknown name 'adm': did you mean 'adam' or 'adamw' or 'lamb'?",
        ),
        ([*DIGITS, "--precision", "tf33"], "argument --precision: unknown name 'tf33': did you mean 'tf32' or 'fp32'?"),
        ([*DIGITS, "--schedule", "cos"], "argument --schedule: unknown name 'cos': did you mean 'cosine'"),
        ([*DIGITS, "--resume", "--overwrite"], "argument --overwrite: not allowed with argument --resume"),
        (["predict", "a.h5", "a.png", "--score", "0.5"], "--score needs --boxes"),
        (
            ["predict", "a.h5", "a.png", "--boxes", "b", "--score", "7"],
            "argument --score: it must be a number from 0 to 1, not '7'",
        ),
        ([*DIGITS, "--momentum", "0.9"], "--momentum needs --optimizer sgd, muon or rmsprop"),
        ([*DIGITS, "--schedule", "one-cycle", "--warmup-epochs", "1"], "--warmup-epochs needs another --schedule than"),
        ([*DIGITS, "--step-epochs", "1"], "--step-epochs needs --schedule step"),
        ([*DIGITS, "--lr", "0.1"], "unknown argument '--lr': did you mean '--learning-rate'?"),
        ([*DIGITS, "-lr=0.1"], "unknown argument '-lr=0.1': did you mean '--learning-rate'?"),
        (["predict", "a.h5", "a.png", "--topp", "3"], "unknown argument '--topp': did you mean '--top'?\n"),
        ([*DIGITS, "--input-shape", "1"], "unknown argument '--input-shape'\n"),
        ([*DIGITS, "--bs", "3"], "unknown argument '--bs': did you mean '--batch-size'?"),
        (["plan", "lenet5", "--input-shape", "1,0,2"], "argument --input-shape: it must be units,height,width such as"),
        (
            ["plan", "lenet5", "--memory", "much"],
            "argument --memory: it must be a size such as 8GiB or 500M, not 'much'",
        ),
        (["plan", "lenet5", "--memory", "0G"], "argument --memory: it must be a size such as 8GiB or 500M, not '0G'"),
    ],
)
def test_usage_errors(run, arguments, message) -> None:
    result = run(*arguments)
    command = arguments[0] if arguments[0] in ("train", "predict", "plan") else ""
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith(f"error: {message}")
    assert result.err.endswith(f"\nSee 'blobnet {command}".rstrip() + " --help'.\n")


@pytest.mark.parametrize(
    "command", [DIGITS, ["evaluate", "a.h5", "--dataset", "digits"], ["bench", "conv"], ["tune", "lenet5"]]
)
def test_a_precision_that_the_device_does_not_have(run, monkeypatch, command) -> None:
    monkeypatch.setattr("blobnet.device.discovery._compute_capability", lambda _: None)
    result = run(*command, "--precision", "tf32")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(
        "error: --precision: tf32 needs an NVIDIA GPU with tensor cores (compute capability 8.0)."
    )
    assert result.err.endswith(f"\nSee 'blobnet {command[0]} --help'.\n")


def test_no_command_is_a_usage_error(run) -> None:
    result = run()
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("usage: blobnet [-h] [--version] COMMAND ...")


def test_version(run) -> None:
    assert run("--version").out == f"blobnet {__version__}\n"


@pytest.mark.parametrize(
    "command",
    ["", "train", "evaluate", "report", "predict", "show", "devices", "doctor", "plan", "tune", "compile", "inspect"],
)
def test_help_fits_80_columns(run, monkeypatch, command) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*[command] * bool(command), "--help")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"usage: blobnet {command}".rstrip())
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.out.endswith("\n")


def test_help_names_all_that_there_is(run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    text = run("train", "--help").out
    for name in [*known_models(), *datasets.known_names(), *(kind.lower() for kind in Optimizer.kinds)]:
        assert name in text
    optimizers = next(a for a in main.make_parser()[1]["train"]._actions if a.dest == "optimizer").choices
    assert sorted(optimizers) == sorted(kind.lower() for kind in Optimizer.kinds)


def test_help_names_the_kinds_of_pictures(run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert (
        "a picture (PNG, JPEG, WebP, TIFF, GIF, BMP, ...; needs Pillow), a .npy array" in run("predict", "--help").out
    )


def test_every_command_has_its_module() -> None:
    commands = main.make_parser()[1]
    assert list(commands) == [
        "train",
        "evaluate",
        "report",
        "predict",
        "show",
        "speedrun",
        "sweep",
        "lr-find",
        "devices",
        "doctor",
        "plan",
        "bench",
        "tune",
        "compile",
        "convert",
        "inspect",
    ]
    for name in commands:
        assert callable(importlib.import_module(f"blobnet.command_line.{name.replace('-', '_')}").run)


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from blobnet.command_line.main import main
try:
    main(["train", "--help"])
except SystemExit:
    pass
heavy = {"numpy", "h5py", "pyopencl", "tqdm", "matplotlib", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_evaluating_imports_neither_matplotlib_nor_pillow() -> None:
    code = """
import sys
import blobnet.command_line.evaluate, blobnet.command_line.train, blobnet.command_line.predict
heavy = {"matplotlib", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "status", "start"),
    [
        (["--version"], 0, ""),
        (["inspect", "no.h5"], 1, "error: no.h5: there must be such a file."),
        (["inspect"], 2, "error: the following arguments are required: FILE.h5"),
    ],
)
def test_statuses_of_a_process(tmp_path, arguments, status, start) -> None:
    result = subprocess.run([*BLOBNET, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert result.stderr.startswith(start)
    assert "Traceback" not in result.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run([*BLOBNET, "plan", "lenet5"], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert result.stderr == b""
    assert result.returncode == 141


def test_ctrl_c_anywhere_is_one_line(run, monkeypatch) -> None:
    def interrupt(path: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("blobnet.files.checkpoint.inspect", interrupt)
    result = run("inspect", "a.h5")
    assert (result.status, result.out, result.err) == (130, "", "interrupted\n")


@pytest.mark.parametrize("during", ["blobnet.command_line.main", "blobnet.command_line.devices", "pyopencl"])
def test_ctrl_c_while_modules_load_is_one_line(during: str) -> None:
    """Also where a library makes another error of it, or none."""
    code = f"""
import builtins, os, signal, sys
load = builtins.__import__
def interrupted(name, *others, **named):
    if name == {during!r} or name == "blobnet.command_line" and {during!r} == "blobnet.command_line.main":
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
        except BaseException:
            raise ImportError("it did not load")
    return load(name, *others, **named)
builtins.__import__ = interrupted
import importlib
find = importlib.import_module
importlib.import_module = lambda name: interrupted(name) and find(name)
sys.argv = ["blobnet", "devices"]
from blobnet.__main__ import main
sys.exit(main())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.long
def test_ctrl_c_while_it_starts_is_one_line(tmp_path) -> None:
    """At 20 moments of the first half second, five processes at a time."""
    # A console script; what Ctrl-C does before its first line is Python's own matter: it may be forgotten, and the
    # training goes on to its end. Whoever runs the tests may ignore Ctrl-C (nohup), and children inherit that.
    usual = "import _signal as each; each.signal(each.SIGINT, each.default_int_handler)"
    script = f"{usual}; print('up', flush=True); import sys; from blobnet.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "train", "lenet5", "--dataset", "digits", "--epochs", "50", "--output"]
    generator = np.random.default_rng(0)
    moments = generator.permutation((np.arange(20) + generator.random(20)) / 40)
    endings = []
    for batch in moments.reshape(4, 5):
        processes = [
            subprocess.Popen(
                # Who comes as far as to save leaves the others alone.
                [*command, f"{moment}.h5"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for moment in batch
        ]
        threads = [threading.Thread(target=_interrupt_later, args=pair) for pair in zip(processes, batch, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        endings += [(*process.communicate(timeout=60), process.returncode) for process in processes]
    ours = [each for each in endings if each[1] and each[1].splitlines()[-1].startswith("interrupted")]
    # The handler does not stand from the very first instruction on.
    assert len(ours) >= 18, endings
    for out, err, status in ours:
        assert (out, status) == ("", 130)
        assert "Traceback" not in err


def _interrupt_later(process: subprocess.Popen[str], seconds: float) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)


def test_nothing_is_loaded_before_ctrl_c_is_taken() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
before = set(sys.modules)
import blobnet.__main__
print(*sorted(set(sys.modules) - before))
"""
    # -S: the site's own files may have loaded anything, besides os.
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    names = "__future__ blobnet blobnet.__main__ blobnet.support blobnet.support.interrupt blobnet.support.running"
    assert result.stdout == f"{names}\n"


def test_whoever_ignores_ctrl_c_still_does() -> None:
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from blobnet.support.interrupt import at_once
with at_once():
    os.kill(os.getpid(), signal.SIGINT)
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("said", "received"), [("Unable to allocate 23 GiB", " Received cause=Unable to allocate 23 GiB."), ("", "")]
)
def test_a_want_of_memory_is_one_line(run, monkeypatch, said: str, received: str) -> None:
    def fail(path: object) -> str:
        raise MemoryError(*[said] * bool(said))

    monkeypatch.setattr("blobnet.files.checkpoint.inspect", fail)
    rule = "error: memory: this machine must have room for the model and its data."
    hint = " Hint: use smaller samples or batches.\n"
    result = run("inspect", "a.h5")
    assert (result.status, result.out, result.err) == (1, "", rule + received + hint)


def test_plugins_of_others_do_not_stop_the_tests(tmp_path) -> None:
    """pytest-benchmark warns where tests run in several processes, and warnings are errors here."""
    (tmp_path / "loud.py").write_text("import warnings\ndef pytest_configure(config): warnings.warn('not in xdist')\n")
    (tmp_path / "loud-1.dist-info").mkdir()
    (tmp_path / "loud-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1\n")
    points = tmp_path / "loud-1.dist-info" / "entry_points.txt"
    test = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/unit/test_floors.py", "-k", "name_what"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    results = []
    for name in ("loud", "benchmark"):
        points.write_text(f"[pytest11]\n{name} = loud\n")
        environment = {**os.environ, "PYTHONPATH": path}
        root = Path(__file__).parents[2]
        results.append(subprocess.run(test, cwd=root, env=environment, capture_output=True, check=False).returncode)
    assert results[0] != 0, "a warning there is an error"
    assert results[1] == 0


def test_public_names_are_there_when_used() -> None:
    code = """
import blobnet as bn
assert set(bn.__all__) <= set(dir(bn))
for name in bn.__all__:
    assert getattr(bn, name) is not None
try:
    bn.nonsense
except AttributeError as error:
    assert str(error) == "module 'blobnet' has no attribute 'nonsense'"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", [["train", "lenet5", "--dataset", "digits"], ["plan", "lenet5"]])
@pytest.mark.parametrize("size", [2**31, 2**63, 10**40])
def test_counts_that_no_device_counts_to(run, command, size) -> None:
    result = run(*command, "--batch-size", size)
    assert result.status == 2
    assert f"argument --batch-size: it must be a whole number of at most 2147483647, not '{size}'" in result.err


def test_a_working_folder_that_is_gone(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = run("predict", "m.h5", "x.png")
    rule = "error: .: the working folder must be there, and one that may be entered. Received cause=No such file or "
    assert (result.status, result.err) == (1, f"{rule}directory. Hint: change to another folder: cd ~, say.\n")
    model = bn.Sequential([bn.layers.Input(2), bn.layers.Dense(2)])
    with pytest.raises(bn.errors.FileError, match="the working folder must be there"):
        model.save("m.h5")
    model.save(tmp_path / "m.h5")
    for read in (bn.load, bn.onnx.load):
        with pytest.raises(bn.errors.FileError, match="there must be such a file"):
            read("m.h5")


def test_a_clock_that_stands_still(run, monkeypatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 1000.0)
    assert run("train", "lenet5", "--dataset", "digits", "--epochs", 1, "--output", "m.h5").status == 0
    assert run("compile", "O[n, m] = +(A[n, k] * B[k, m])", "--shapes", "A=9x6", "B=6x5").status == 0


# -- what this user may not enter, and output that goes nowhere -------------------------------------------------------

#: Runs a program as a user whom folders of mode 0 keep out, as they do not keep out root.
AS_A_USER = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
#: Runs several commands, and prints the status and the last line of each.
COMMANDS = """
import contextlib, io, json, sys
from blobnet.command_line.main import main

for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(arguments)
    print(json.dumps([status, said.getvalue().splitlines()[-1:]]))
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that this user may not enter."""
    folder = tmp_path / "closed"
    folder.mkdir(0)
    yield folder
    folder.chmod(0o700)


def as_a_user(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_A_USER, *arguments]
    return subprocess.run(command, text=True, timeout=300, **{"capture_output": True, **settings})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_folders_that_one_may_not_enter(closed: Path, trained: Path, tmp_path: Path) -> None:
    commands = [
        ["inspect", "closed/m.h5"],
        ["evaluate", str(trained), "--dataset", "closed"],
        ["evaluate", str(trained), "--dataset", "closed/x.npz"],
        ["train", "closed/net.py:net", "--dataset", "digits"],
        ["train", "lenet5", "--dataset", "digits", "--output", "closed/a.h5"],
        ["train", "--init-from", "closed/m.h5", "--dataset", "digits"],
        ["predict", str(trained), "closed/x.png"],
        ["show", "closed"],
        ["convert", "closed/m.h5", "a.onnx"],
        ["convert", str(trained), "closed/a.onnx"],
    ]
    done = as_a_user("-c", COMMANDS, json.dumps(commands), cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands), done.stderr
    for command, line in zip(commands, lines, strict=True):
        status, (said,) = json.loads(line)
        assert status == 1, command
        assert re.match(r"error: closed/\S+: .*Permission denied\.", said), (command, said)


#: Tries each expression, and prints what it raises.
CALLS = """
import json, sys
import numpy as np
import blobnet as bn

model, x, y = bn.load(sys.argv[2]), np.zeros((4, 1, 8, 8), np.float32), [0, 1, 2, 3]
for call in json.loads(sys.argv[1]):
    try:
        eval(call)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_python_in_folders_that_one_may_not_enter(closed: Path, trained: Path, tmp_path: Path) -> None:
    names = ["closed", "closed/a", "closed/x.npz", "closed/x.npy", "closed/x.h5", "closed/x.csv"]
    calls = [f"bn.datasets.load({name!r})" for name in names]
    calls += [
        "bn.load('closed/m.h5')",
        "model.save('closed/m.h5')",
        "bn.datasets.read_image('closed/x.png', (1, 8, 8))",
    ]
    files = [
        "Checkpoint('closed/a.h5')",
        "SaveBest('closed/a.h5')",
        "CSVLog('closed/a.csv')",
        "TensorBoard('closed/a')",
    ]
    calls += [f"model.fit(x, y, validation=(x, y), callbacks=[bn.callbacks.{file}])" for file in files]
    done = as_a_user("-c", CALLS, json.dumps(calls), str(trained), cwd=tmp_path)
    raised = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(raised) == len(calls), done.stderr
    for call, (kind, said) in zip(calls, raised, strict=True):
        assert kind == "FileError", (call, said)
        assert said.startswith("closed"), (call, said)
        assert "Permission denied" in said, (call, said)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs to be root")
def test_a_user_whom_the_system_does_not_know(trained: Path, tmp_path: Path) -> None:
    """As in a container with ``--user 54321``: neither a name nor a home."""
    settings = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER", "XDG_CACHE_HOME")}
    train = ["train", "lenet5", "--dataset", "digits", "--epochs", "1", "--output", "a.h5"]
    commands = [["devices"], ["inspect", str(trained)], train]
    rights = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # What root alone may read.
    command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *rights, sys.executable, "-c", COMMANDS]
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [*command, json.dumps(commands)], text=True, capture_output=True, timeout=300, cwd=tmp_path, env=settings
    )
    statuses = [json.loads(line)[0] for line in done.stdout.splitlines() if line.startswith("[")]
    assert statuses == [0] * len(commands), done.stdout + done.stderr
    assert (tmp_path / "a.h5").stat().st_uid == 54321


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_a_home_of_another_user(closed: Path, trained: Path, tmp_path: Path) -> None:
    settings = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "POCL_CACHE_DIR")}
    commands = [["devices"], ["plan", "lenet5"], ["evaluate", str(trained), "--dataset", "digits"]]
    done = as_a_user("-c", COMMANDS, json.dumps(commands), cwd=tmp_path, env={**settings, "HOME": str(closed)})
    statuses = [json.loads(line)[0] for line in done.stdout.splitlines() if line.startswith("[")]
    assert statuses == [0, 0, 0], done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_is_full_or_closed(trained: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blobnet", "inspect", str(trained)]
    hint = "Hint: stdout or stderr is full, or was closed."
    for arguments in (command[3:], ["--help"], ["train", "--help"], ["--version"]):
        for buffering in ("", "-u"):
            shell = [sys.executable, *buffering.split(), "-m", "blobnet", *arguments]
            with Path("/dev/full").open("w") as full:
                done = subprocess.run(shell, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            assert (done.returncode, done.stderr) == (
                1, f"error: output: it cannot be written: No space left on device. {hint}\n"
            )  # fmt: skip
    for closing in (">&-", "2>&-", "<&- >&- 2>&-"):
        shell = ["sh", "-c", f'"$@" {closing}', "sh", *command]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), closing
        assert ("parameters" in done.stdout) == (closing == "2>&-")
