"""``blobnet doctor``: drivers that go wrong on purpose, each with its own verdict, and what comes of it."""

from __future__ import annotations

import json
import pickle
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.checkup import doctor
from blobnet.checkup.steps import checks_of_steps, examine_steps
from blobnet.command_line.main import main
from blobnet.device import tuning
from blobnet.device.device import Device
from blobnet.device.tuning import Tunings, Winner
from blobnet.errors import BlobnetWarning
from blobnet.examination import checks, children, verification
from blobnet.examination.checks import Check, check_of_way, checks_of_implementations, checks_of_layers
from blobnet.examination.children import examine_all
from blobnet.examination.examination import Finding, examine
from blobnet.execution import executor
from blobnet.implementations import IMPLEMENTATIONS
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import BrokenVariant, Task, Variant
from blobnet.losses import Loss
from blobnet.memory.blob import Shape
from blobnet.optimizers import Optimizer
from blobnet.planning import Plan, make_plan
from tests.kinds import tuning_for

#: A child whose kernel file has another text.
FAULTY = """
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from blobnet.launch import kernel_source
load = kernel_source.load
def patched(name):
    if name != {kernel!r}:
        return load(name)
    text = kernel_source.header(name + ".cl")
    assert {old!r} in text
    return kernel_source.parse(name, text.replace({old!r}, {new!r}))
kernel_source.load = patched
from blobnet.checkup.serving import serve
serve(sys.argv[2])
"""
DENSE = Check(layers.Dense(9), (Shape.flat(23),), None, 3, "forward", Variant("direct"))
CONVOLUTION = Check(
    layers.Conv2D(5, 3, padding=1, groups=5), (Shape(5, 9, 19),), None, 2, "forward", Variant("depthwise"), seed=5
)
#: Where the first work-item of a dense layer's forward kernel begins.
BEGIN = "    const int first_sample"
FIRST = "if (get_global_id(0) + get_global_id(1) + get_global_id(2) == 0) {{ {} }}"


def mistake(statement: str) -> tuple[str, str]:
    """What a dense layer's forward kernel is changed to: its first work-item does something first."""
    return BEGIN, FIRST.format(statement) + "\n" + BEGIN


#: Verdict -> the check, its kernel, what of that is replaced by what, and what the note says.
MISTAKES: dict[str, tuple[Check, str, tuple[str, str], str]] = {
    "wrong": (DENSE, "dense/forward", ("FINISHED(sum,", "FINISHED(1.001f * sum,"), "output is off by 0.00"),
    "wrong, by what it must not read": (
        DENSE,
        "dense/forward",
        ("FINISHED(sum,", "FINISHED(sum + 0 * output[BLOB_INDEX(OUTPUT, count, 0, 0, 0)],"),
        "output is not a number",
    ),
    "stray write": (
        CONVOLUTION,
        "convolution/forward_depthwise",
        (
            "    const int first = get",
            "    for (int u = 0; u < OUTPUT_UNIT_COUNT; u++) { output[BLOB_INDEX(OUTPUT, 0, u, 0, -1)] = 1; }\n"
            "    const int first = get",
        ),
        "every halo cell must be exactly 0 after a launch",
    ),
    "stray write, before the buffer": (
        DENSE,
        "dense/forward",
        mistake("output[-1] = 1;"),
        "a launch must write nothing before or behind its buffers",
    ),
    "not built": (DENSE, "dense/forward", (BEGIN, "    this is no C;\n" + BEGIN), "must build the kernel"),
    "crashed": (DENSE, "dense/forward", mistake("output[1L << 60] = 1;"), "killed by SIG"),
    "hung": (
        DENSE,
        "dense/forward",
        mistake("volatile int more = 1; while (more) {{ }}".replace("{{ }}", "{ }")),
        "no answer within",
    ),
}


def make_faulty(patch: pytest.MonkeyPatch, kernel: str, change: tuple[str, str]) -> None:
    patch.setattr(children, "_PROGRAM", FAULTY.format(kernel=kernel, old=change[0], new=change[1]))


@pytest.fixture
def host(device: Device) -> Device:
    if not device.is_host:
        pytest.skip("what goes wrong here, goes wrong in the process itself")
    return device


@pytest.fixture
def fresh(host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device of which nothing is known yet."""
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "tunings")
    executor.DENIALS_TOLD.clear()
    return Device(host.info)


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_has_its_verdict(host: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The doctor goes on behind it: with another check, in which nothing is wrong."""
    check, kernel, change, note = MISTAKES[name]
    make_faulty(monkeypatch, kernel, change)
    other = Check(layers.GlobalAveragePool(), (Shape(3, 5, 7),))
    limit = 6 if name == "hung" else 60
    found = dict(examine_all(host.info.identity, [check, other], limit=limit))
    finding = found[check]
    assert finding.verdict == name.partition(",")[0], finding
    assert note in finding.note
    assert finding.condemns
    assert found[other].verdict == "ok"


def before_serving(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What else children do first."""
    serving = "serve(sys.argv[2])"
    assert serving in children._PROGRAM
    monkeypatch.setattr(children, "_PROGRAM", children._PROGRAM.replace(serving, text + serving))


def test_what_differs_from_run_to_run(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a bit of one number."""
    before_serving(
        monkeypatch,
        "from blobnet.examination.measured import Bench; run = Bench.run\n"
        "def noisy(self, phase, *, debug):\n"
        "    run(self, phase, debug=debug)\n"
        "    self._data(self.output)[0, 0].view('u4')[...] ^= not debug\n"
        "Bench.run = noisy\n",
    )
    ((_, finding),) = examine_all(host.info.identity, [DENSE])
    assert finding.verdict == "not repeatable"
    assert finding.note.endswith("forward: output 0: 1 cells differ between two runs on the same data")
    assert finding.condemns


@pytest.mark.parametrize("check", [DENSE, CONVOLUTION], ids=["dense", "depthwise"])
def test_what_is_right(device: Device, check: Check) -> None:
    if device.is_host:
        finding = examine(device, check)
        assert finding.verdict == "ok"
        assert finding.error is not None
        assert 0 < finding.error < 1e-6
        assert finding.kernel == ("dense/forward" if check is DENSE else "convolution/forward_depthwise")
        assert finding.ms is not None
        assert finding.ms > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_that_are_nothing_are_right(device: Device, seed: int) -> None:
    """A gradient is 0 but for rounding, as that of the keys' bias is, which softmax ignores."""
    check = checks_of_layers(thorough=True, seed=seed)[-1]
    assert check.layer.kind == "MultiHeadAttention"
    finding = examine(device, check)
    assert (finding.verdict, finding.note) == ("ok", "")


def test_a_crash_is_not_blamed_on_what_comes_behind_it(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies of its third check, whichever that is, tells nothing of that one."""
    before_serving(
        monkeypatch,
        "from blobnet.checkup import serving as e; import os; run, done = e.examine, []\n"
        "def dying(device, check):\n"
        "    done.append(check)\n"
        "    return os._exit(3) if len(done) == 3 else run(device, check)\n"
        "e.examine = dying\n",
    )
    monkeypatch.setattr(children, "_MOST", 1)
    some = [Check(layers.Activation("relu"), (Shape(2, 3, width),)) for width in (3, 4, 5)]
    found = [finding for _, finding in examine_all(host.info.identity, some)]
    assert [finding.verdict for finding in found] == ["ok", "ok", "crashed"]
    assert "it passes when it is tried again" in found[2].note
    assert "ended with status 3" in found[2].note
    assert not found[2].condemns


def test_a_device_that_cannot_be_opened(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_PROGRAM", "raise SystemExit('no driver')")
    found = [finding for _, finding in examine_all(host.info.identity, [DENSE])]
    assert [(finding.verdict, finding.condemns) for finding in found] == [("crashed", False)]
    assert found[0].note.startswith("the device could not be opened: ended with status 1")


def test_checks_and_findings_travel() -> None:
    for check in [DENSE, CONVOLUTION, *checks_of_layers(thorough=True, seed=3)]:
        assert pickle.loads(pickle.dumps(check)) == check
        assert json.dumps(check.as_json())
    for step in checks_of_steps(3):
        assert pickle.loads(pickle.dumps(step)) == step
        assert json.dumps(step.as_json())
    for error in (None, 1e-7, float("inf")):
        finding = Finding("wrong", "dense/forward", "direct", error, 0.5, "a note")
        assert pickle.loads(pickle.dumps(finding)) == finding
        assert json.dumps(finding.as_json(), allow_nan=False)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_are_right(device: Device) -> None:
    found = {check.title: examine_steps(device, check) for check in checks_of_steps(100)}
    assert {name: finding.note for name, finding in found.items() if finding.verdict != "ok"} == {}
    errors = {name: finding.error or 0.0 for name, finding in found.items()}
    assert 1e-5 < errors.pop("float16") < 2e-3
    assert 1e-3 < errors.pop("bfloat16") < 1e-2
    assert max(errors.values()) < 5e-6
    assert {*Loss.kinds, *Optimizer.kinds} <= errors.keys()


#: What is checked, the kernel that is wrong, what of it is replaced by what, the verdict, and where it is seen.
WRONG_STEPS = [
    (
        "CrossEntropy",
        "loss/cross_entropy",
        "DELTA_DIVISOR, group",
        "DELTA_DIVISOR * 1.001f, group",
        "wrong",
        "gradient of conv/",
    ),
    ("Huber", "loss/huber", "DELTA_DIVISOR, group", "DELTA_DIVISOR * 1.001f, group", "wrong", "gradient of conv/"),
    ("sample weights", "loss/cross_entropy", "ARRAY(sample_weights)", "ARRAY(class_weights)", "wrong", ""),
    ("SGD", "optimizer/clip_scale", "ARRAY(clip_scale)", "1.001f + 0 * ARRAY(clip_scale)", "not built", "must build"),
    ("AdamW", "optimizer/adam", "parameter - step_size", "parameter - 1.01f * step_size", "wrong", "conv/"),
    ("Dropout", "dropout/backward", '#include "dropout/drop.h"', "{include}", "wrong", "gradient of conv/"),
    ("augmentation", "input/augmented", "0.299f", "0.31f", "wrong", "gradient of conv/weight"),
    ("MeanSquaredError", "loss/mean_squared_error", "group[LOCAL_WIDTH];", "{stray}", "stray write", "every halo cell"),
    (
        "Expression",
        "loss/expression",
        "= weight / DELTA_DIVISOR",
        "= 1.01f * weight / DELTA_DIVISOR",
        "wrong",
        "gradient of conv",
    ),
    ("Mixup", "input/augmented", "part * ((value)", "0.99f * part * ((value)", "wrong", "gradient of conv/weight"),
    ("CutMix", "input/augmented", "? (value)", "? 1.01f * (value)", "wrong", "gradient of conv/weight"),
    ("sum of batches", "optimizer/accumulate", "(before +", "(0.99f * before +", "wrong", "gradient of conv/"),
    ("sum of shards", "optimizer/merge", "(before +", "(0.99f * before +", "wrong", "norm/running_"),
    ("sum of shards' batches", "optimizer/finish_sum", "(scale *", "(1.01f * scale *", "wrong", ""),
    ("average of weights", "optimizer/average", "+ rate *", "+ 0.9f * rate *", "wrong", "average of "),
    ("average of weights", "optimizer/average", "ARRAY(parameters)[i];", "0;", "wrong", "average of norm/running_"),
    ("Expression", "loss/expression", "= weight / DELTA_DIVISOR", "{unset}", "wrong", "is not a number"),
    (
        "average of weights",
        "optimizer/average",
        "parameters)[i];",
        "{before}",
        "stray write",
        "'averaged parameters': a",
    ),
    ("prediction", "normalization/forward_inference", "FOR_PLANES", "{behind}", "stray write", "must write nothing be"),
]
PIECES = {
    "{include}": '#undef SCALE\n#define SCALE 1.001f\n#include "dropout/drop.h"',
    "{unset}": "= weight / DELTA_DIVISOR + 0 * ARRAY(loss_deltas)[n]",
    "{before}": "parameters)[i];\n        ARRAY(average)[ELEMENTS + 4096] = 1;",
    "{behind}": "output[BLOB_INDEX(OUTPUT, count, 0, 0, 0) + 4096] = 1;\n    FOR_PLANES",
    "{stray}": "group[LOCAL_WIDTH];\n    if (get_global_id(0) == 0) { output_delta[0] = 1; }",
}


@pytest.mark.parametrize(
    ("name", "kernel", "old", "new", "verdict", "note"), WRONG_STEPS, ids=[" ".join(row[:2]) for row in WRONG_STEPS]
)
def test_steps_that_are_wrong(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, kernel: str, old: str, new: str, verdict: str, note: str
) -> None:
    (check,) = [check for check in checks_of_steps(0) if check.title == name]
    monkeypatch.setattr(Device, "tuning", tuning_for("cpu"))  # Its delta has a halo, which GPUs' kernels do without.
    load = kernel_source.load

    def patched(wanted: str) -> kernel_source.KernelSource:
        source = load(wanted)
        if wanted != kernel:
            return source
        assert old in source.text
        return kernel_source.parse(wanted, source.text.replace(old, PIECES.get(new, new)))

    monkeypatch.setattr(kernel_source, "load", patched)
    finding = examine_steps(device, check)
    assert finding.verdict == verdict, finding
    assert note in finding.note


# -- what is checked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "precision"), [("cpu", "fp32"), ("cpu", "bf16"), ("gpu", "fp32"), ("gpu", "tf32"), ("gpu", "bf16")]
)
def test_each_variant_in_each_direction(kind: str, precision: str) -> None:
    tuning = tuning_for(kind, precision=precision)
    found = checks_of_implementations(tuning, 2, 0)
    wanted = {
        (family, variant, direction)
        for name, item in IMPLEMENTATIONS.items()
        if item.lanes in (None, kind == "gpu") and precision in item.precisions and not item.needs_cells
        for family in item.families
        for variant in item.variants
        for direction in item.directions
    }
    assert {(check.family, check.way.variant, check.direction) for check in found} == wanted
    assert len(found) == 2 * len(wanted)
    assert {check.precision for check in found} == {precision}
    other = checks_of_implementations(tuning, 2, 1)
    assert other != found, "the seed must change the layers"


def test_a_tuned_way_is_checked_on_odd_planes_if_it_is_for_them(host: Device) -> None:
    task = Task.parse("forward 8x32x32:16k3p1 batch 64")
    layer, shape = layers.Conv2D(16, 3, padding=1, bias=False), Shape(8, 32, 32)
    _, site = checks.plan_alone(layer, shape, 2, Tuning(host.info.model))
    way = next(item.way for items in [layer.alternatives(site)] for item in next(iter(items.values()))
               if item.way.variant == "direct")  # fmt: skip
    check = check_of_way(layer, shape, task, way, "tuned")
    assert check.odd == Shape(8, 15, 15)
    finding = examine(host, check)
    assert (finding.verdict, finding.way) == ("ok", str(way))
    gone = examine(host, check_of_way(layer, shape, task, Variant("direct", "99x99x99"), "tuned"))
    assert gone.verdict == "not here"
    assert not gone.is_failure


# -- the list of what is denied ----------------------------------------------------------------------------------------


def test_what_is_denied_is_left_out_and_said_once(fresh: Device) -> None:
    network = bn.Sequential([layers.Input(23), layers.Dense(9)], seed=1)
    fault = BrokenVariant(Variant("direct"), "dense", "forward")

    def variants() -> set[str]:
        plan = make_plan(network.graph, 4, tuning=fresh.tuning)
        return {call.way.variant for _, call in plan.calls if call.way}

    assert variants() == {"direct"}
    fresh.tunings.judge({fault: "wrong"}, ())
    assert variants() == {"compiled"}
    path = fresh.tunings.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Device(fresh.info)
    assert again.tunings.denied == {fault: "wrong"}, "another process must know it"
    x = np.random.default_rng(0).standard_normal((4, 23), dtype=np.float32)
    with pytest.warns(BlobnetWarning) as caught:
        network.predict(x, device=again)
    assert [str(item.message) for item in caught] == [
        f"direct (dense forward): {fresh.info.name} must compute rightly by this variant, which is left out: a check "
        "of it failed. Received verdict=wrong. Hint: 'blobnet doctor' checks variants again, 'blobnet doctor --clear' "
        "has all of them used again."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.predict(x[:3], device=Device(fresh.info))
    assert again.tunings.clear_denied() == 1
    assert Tunings(fresh.info.identity).denied == {}


def test_the_list_is_of_one_source_and_what_passes_leaves_it(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = BrokenVariant(Variant("direct"), "dense", "forward")
    fresh.tunings.judge({fault: "crashed"}, ())
    assert fault in Tunings(fresh.info.identity).broken
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "fingerprint", lambda: "others")
        assert not Tunings(fresh.info.identity).broken
    fresh.tunings.judge({}, [fault])
    other = Tunings(fresh.info.identity)
    assert (other.denied, other.verified, other.broken) == ({}, {fault}, frozenset())


def test_verify_finds_a_wrong_variant_at_its_first_use(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((8, 23), dtype=np.float32)
    y = np.arange(8) % 3

    def trained(**settings: object) -> np.ndarray:
        network = bn.Sequential([layers.Input(23), layers.Dense(3)], seed=1)
        network.fit(x, y, batch_size=4, device=fresh, verbose=False, **settings)
        return network.predict(x, device=fresh)

    wanted = trained()
    make_faulty(monkeypatch, *MISTAKES["wrong"][1:3])
    with pytest.warns(BlobnetWarning) as caught:
        found = trained(verify=True)
    (message,) = (str(item.message) for item in caught)
    assert message.startswith(
        f"direct (dense forward): {fresh.info.name} must compute rightly by this variant. Received cause=wrong: Dense"
    )
    assert message.endswith("Hint: it is left out from now on; 'blobnet doctor' says more.")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert set(fresh.tunings.denied) == {BrokenVariant(Variant("direct"), "dense", "forward")}
    assert BrokenVariant(Variant("direct"), "dense", "backward weights") in fresh.tunings.verified
    monkeypatch.setattr(children, "_PROGRAM", "raise SystemExit('nothing is left to check')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(verify=True)


def test_verify_on_the_command_line(
    fresh: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verified: list[str] = []

    def verify_plan(device: Device, plan: Plan) -> list[BrokenVariant]:
        verified.append(device.info.address)
        return []

    monkeypatch.setattr(verification, "verify_plan", verify_plan)
    words = ["train", "lenet5", "--dataset", "digits", "--epochs", "1", "--device", fresh.info.address, "--overwrite"]
    for options, wanted in (([], []), (["--verify"], [fresh.info.address])):
        assert main([*words, "--output", str(tmp_path / "model.h5"), *options]) == 0
        assert verified == wanted
    capsys.readouterr()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on a device, with two checks; also on what was tuned."""
    monkeypatch.setattr(doctor, "checks_of_implementations", lambda *_: [DENSE])
    monkeypatch.setattr(doctor, "products_on", lambda *_: "fp32")  # Some processors have more.
    monkeypatch.setattr(doctor, "checks_of_steps", lambda _: [])
    monkeypatch.setattr(doctor, "checks_of_chains", lambda **_: [])
    monkeypatch.setattr(doctor, "checks_of_layers", lambda **_: [Check(layers.Activation("gelu"), (Shape(3, 5, 7),))])
    return lambda *options: main(["doctor", "--device", fresh.info.address, *options])


def test_a_device_that_is_well(
    few: Callable[..., int], fresh: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    way = Variant("direct")
    for name in ("forward 23:dense9 batch 4", "forward 41:dense9 batch 4"):
        fresh.tunings.record(Task.parse(name), Winner(way, 1.0, way, 1.0, "fast"))
    monkeypatch.setattr(doctor, "_TUNED", 1)
    assert few() == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == str(fresh.info)
    assert lines[1].split() == ["what", "variant", "error", "ms", "verdict", "kernel"]
    for name in ("dense forward", r"dense forward \(tuned\)"):
        assert re.search(rf"^{name} +direct +\d\.\de-0\d +\S+ +ok +dense/forward$", out, re.MULTILINE)
    assert f"{fresh.info.address}: 1 of 2 tuned entries checked; --thorough checks all" in lines
    assert lines[-1].startswith("all right: 3 checks on 1 device in ")
    assert few("--thorough") == 0
    assert "all right: 4 checks" in capsys.readouterr().out
    assert all(word not in out for word in ("```", "denied"))


def test_a_device_that_is_not(
    few: Callable[..., int], fresh: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_faulty(monkeypatch, *MISTAKES["wrong"][1:3])
    assert few("--seed", "7") == 1
    text = capsys.readouterr().out
    assert "1 of 2 checks failed, on 1 device in " in text
    assert f"{fresh.info.address}: from now on plans do without direct (dense forward)" in text
    block = text.partition("for a bug report:")[2]
    assert block.count("```") == 2
    assert f"blobnet {bn.__version__}, Python " in block
    assert "$ blobnet doctor --seed 7\n" in block
    assert f"{fresh.info}\n1 of 2 checks are right\n" in block
    assert "output is off by" in block
    assert "Dense" in block
    assert few("--json") == 1
    values = json.loads(capsys.readouterr().out)
    assert values["failed"] == 1
    (found,) = values["devices"]
    assert found["driver"] == fresh.info.driver
    assert found["denied"] == ["direct (dense forward)"]
    verdicts = {(check["family"], check["verdict"]) for check in found["checks"]}
    assert verdicts == {("dense", "wrong"), ("activation", "ok")}
    assert Tunings(fresh.info.identity).denied == {BrokenVariant(Variant("direct"), "dense", "forward"): "wrong"}
    monkeypatch.undo()


def test_clearing(few: Callable[..., int], fresh: Device, capsys: pytest.CaptureFixture[str]) -> None:
    fresh.tunings.judge({BrokenVariant(Variant("direct"), "dense", "forward"): "hung"}, ())
    assert few("--clear") == 0
    assert capsys.readouterr().out == f"{fresh.info}: 1 variant may be used again\n"
    assert not Tunings(fresh.info.identity).broken


def test_a_cache_that_cannot_be_written(
    few: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "file" / "tunings")
    make_faulty(monkeypatch, *MISTAKES["wrong"][1:3])
    assert few() == 1
    assert "the tuning cache must be writable" in capsys.readouterr().out


def test_in_python(few: Callable[..., int], fresh: Device) -> None:
    report = bn.doctor(fresh.info.address)
    assert report.is_well
    assert not report.failures
    assert str(report).startswith(str(fresh.info))
    with pytest.raises(bn.errors.DeviceError, match="the device must be one that OpenCL lists"):
        bn.doctor("no such device")
