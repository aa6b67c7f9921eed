"""``blobnet plan`` and ``devices``, and the text of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from blobnet import layers, losses
from blobnet.device import discovery
from blobnet.device.discovery import DeviceInfo, choose
from blobnet.hardware.device_model import GENERIC, Answers, facts, model_of
from blobnet.launch.kernel_call import COPYING, ZERO_HALO, Blob, GlobalSize, KernelCall, Tuning, settle
from blobnet.launch.work_sizes import copy_call
from blobnet.memory.blob import BFLOAT16, FLOAT16, BlobLayout, Halo, Shape
from blobnet.models.lenet5 import lenet5
from blobnet.network import graph
from blobnet.optimizers import SGD, Adam
from blobnet.planning import make_plan
from blobnet.planning.report import Limits, report
from blobnet.support.formatting import format_bytes
from blobnet.training.scaling import COPIES
from tests.kinds import tuning_for


def info(index: int, kind: str, name: str, memory: int = 8 << 30) -> DeviceInfo:
    handle = SimpleNamespace(max_clock_frequency=1000)
    found = DeviceInfo(0, index, "Some Platform 3.0", name, kind, 7, memory, memory // 4, 1 << 15, "1.2", handle)
    vars(found)["model"] = GENERIC[kind]
    return found


@pytest.fixture
def two_devices(monkeypatch) -> None:
    found = [info(0, "cpu", "Slow"), info(1, "gpu", "Fast", 24 << 30)]
    monkeypatch.delenv("BLOBNET_DEVICE", raising=False)
    monkeypatch.setattr(discovery, "devices", lambda: found)


@pytest.fixture
def no_devices(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    (tmp_path / "odd.icd").write_text("nothing.so\n")
    monkeypatch.setattr(discovery, "devices", list)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_devices(run, two_devices) -> None:
    result = run("devices")
    assert (result.status, result.err) == (0, "")
    assert result.out == (
        "  address  kind   units     memory  name / platform, driver\n"
        "  0:0      cpu        7    8.0 GiB  Slow\n"
        "           Some Platform 3.0, driver 1.2\n"
        "* 0:1      gpu        7   24.0 GiB  Fast\n"
        "           Some Platform 3.0, driver 1.2\n"
        "\n"
        "* = default; choose another by address or name: --device, or $BLOBNET_DEVICE\n"
    )


def test_the_real_devices(run) -> None:
    result = run("devices")
    assert result.status == 0
    assert f"* {choose().address} " in result.out
    assert result.out.count("\n* ") == 2
    for found in discovery.devices():
        assert found.name in result.out
        assert f"{found.platform}, driver {found.driver}\n" in result.out


def test_facts_of_devices(run, monkeypatch) -> None:
    monkeypatch.delenv("BLOBNET_DEVICE", raising=False)
    found = info(0, "gpu", "NVIDIA H200")
    answers = Answers("NVIDIA H200", "NVIDIA Corporation", "NVIDIA CUDA", compute_units=132, clock=1980, cache_line=128)
    vars(found)["model"] = model_of(answers)
    monkeypatch.setattr(discovery, "devices", lambda: [found])
    result = run("devices", "--facts")
    assert (result.status, result.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in result.out.splitlines()[3:-2]]
    assert [name for name, _ in lines] == [name for name, _, _ in facts(found.model) if name != "name"]
    texts = {name: re.split(" {2,}", text) for name, text in lines}
    assert texts["architecture"] == ["hopper", "table"]
    assert texts["is_simt"] == ["yes", "driver"]
    assert texts["register_file"] == ["256.0 KiB", "table"]
    assert texts["caches"] == ["256.0 KiB", "table"]
    assert texts["cache_line"] == ["128 B", "driver"]
    assert texts["clock"] == ["1.98 GHz", "driver"]
    assert texts["flops"] == ["66,908 GFLOPS", "table"]
    assert texts["bandwidth"] == ["4,800 GB/s", "table"]
    assert texts["tensor_types"] == ["tf32, bf16, fp16", "table"]
    assert texts["capability"] == ["unknown"]


def test_facts_of_the_real_devices(run) -> None:
    result = run("devices", "--facts")
    assert result.status == 0
    for found in discovery.devices():
        assert found.model.is_host == (found.kind == "cpu")
        assert found.model.group_size == found.handle.max_work_group_size
        assert f"lanes           {found.model.lanes} " in result.out


def test_a_wrong_default_still_shows_the_list(run, monkeypatch) -> None:
    monkeypatch.setenv("BLOBNET_DEVICE", "no such device")
    result = run("devices")
    assert result.status == 1
    assert result.out.count("\n* ") == 1
    assert result.out.startswith("  address  kind ")
    assert result.err.startswith("error: $BLOBNET_DEVICE: the device must be one that OpenCL lists. Received device=no")


@pytest.mark.parametrize("arguments", [["devices"], ["plan", "lenet5", "--device", "cpu"], ["train", "lenet5"]])
def test_no_platform(run, no_devices, tmp_path, arguments) -> None:
    result = run(*arguments, *["--dataset", "digits"] * (arguments[0] == "train"))
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("error: OpenCL: at least one OpenCL platform must be installed. Received ")
    assert f"icd_files=['{tmp_path / 'odd.icd'}']. Hint: for a CPU: pip install intel-opencl-rt" in result.err


def test_a_device_is_found_by_its_kind(two_devices) -> None:
    assert choose("cpu").name == "Slow"
    assert choose("gpu").name == "Fast"


# -- plan --------------------------------------------------------------------------------------------------------------


def test_plan_needs_no_device(run, no_devices) -> None:
    result = run("plan", "lenet5")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("lenet5, training, batch 64, kernels for a cpu\n\nstorage  ")
    assert "largest batch" not in result.out
    for name in ("input output", "logits delta", "parameters", "gradients", "samples", "optimizer first_moment"):
        assert re.search(rf"^\+? ?{name} ", result.out, re.MULTILINE), name
    assert re.search(r"^only moving data +3, [0-9.]+ MiB\n  clearing halos +2, ", result.out, re.MULTILINE)
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize("model", ["lenet5", "fashion_cnn", "resnet8", "resnet50", "mobilenet_v2"])
def test_shipped_models_copy_nothing(run, no_devices, model) -> None:
    assert re.search(r"^  copying blobs +0$", run("plan", model).out, re.MULTILINE)


def test_plan_says_what_the_host_does(run, no_devices, tmp_path, monkeypatch) -> None:
    """Of an ONNX file whose sizes are open; what the host does is never trained."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    float_, int_ = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    arrays = {"w": weight, "k": np.array([2])}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        onnx.helper.make_node("TopK", ["a", "k"], ["values", "places"], "best"),
        onnx.helper.make_node("Neg", ["values"], ["y"], "minus"),
    ]
    entry = onnx.helper.make_tensor_value_info("x", float_, ["N", 3, "h", "w"])
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, [None] * 4) for name, kind in (("y", float_), ("places", int_))
    ]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "test", [entry], ends, constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    result = run("plan", "net.onnx", "--input-shape", "3,9,8", "--batch-size", "2")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("net.onnx, inference, batch 2")
    assert result.out.endswith("On the host, in NumPy, after the network: best (TopK), minus (Neg)\n")
    result = run("plan", "net.onnx")
    assert result.status == 1
    assert "every axis but that of the samples must have a size of at least 1" in result.err


def test_plan_finds_the_largest_batch(run, two_devices) -> None:
    plan = lenet5().plan(128, device_class="gpu")
    state = 4 * sum(Adam().memory(plan.request.parameters).values())
    for arguments, memory, allocation, name, kind in (
        ([], 24 << 30, 6 << 30, "Fast", "gpu"),
        (["--memory", "2GiB"], 2 << 30, 2 << 30, "--memory", "cpu"),
        (["--memory", "1.5g"], 3 << 29, 3 << 29, "--memory", "cpu"),
        (["--device", "Slow"], 8 << 30, 2 << 30, "Slow", "cpu"),
    ):
        plan = lenet5().plan(128, device_class=kind)
        result = run("plan", "lenet5", *arguments)
        batch = plan.largest_batch(memory, allocation, state)
        room = f"{name}: {format_bytes(memory)}, {format_bytes(allocation)} a buffer"
        assert result.out.splitlines()[0].endswith(f"kernels for {name if name != '--memory' else f'a {kind}'}")
        assert result.out.splitlines()[-1] == f"largest batch       {batch:,} ({room})"
    result = run("plan", "lenet5", "--memory", "100K")
    assert result.out.endswith("largest batch       none, not even 1 fits (--memory: 100.0 KiB, 100.0 KiB a buffer)\n")


def test_plan_follows_the_device(run, monkeypatch) -> None:
    """What runs there is shown: on a GPU with wgmma cells, and what packs them."""
    monkeypatch.delenv("BLOBNET_DEVICE", raising=False)
    gpus = [info(number, "gpu", name, 80 << 30) for number, name in enumerate(("NVIDIA H200", "Some GPU"))]
    asked = {"compute_units": 132, "capability": (9, 0), "group_size": 1024, "local_memory": 48 << 10}
    vars(gpus[0])["model"] = model_of(Answers("NVIDIA H200", "NVIDIA Corporation", "NVIDIA CUDA", **asked))
    vars(gpus[1])["model"] = replace(model_of(Answers("Some GPU", **asked)), capability=None)
    monkeypatch.setattr(discovery, "devices", lambda: gpus)
    shape = ("--input-shape", "3,112,112", "--batch-size", 64, "--precision", "bf16")
    texts = [run("plan", "resnet18", *shape, "--device", gpu.name).out for gpu in gpus]
    for gpu, text in zip(gpus, texts, strict=True):
        assert text.startswith(f"resnet18, training, batch 64, kernels for {gpu.name}\n")
    assert "convolutions multiply them on tensor cores" in texts[0]
    assert re.search(r"^  packing cells +[0-9]+, [0-9.]+ MiB", texts[0], re.MULTILINE)
    assert "in memory alone" in texts[1]
    assert "packing cells" not in texts[1]


def test_plan_options(run, no_devices, net, trained) -> None:
    inference = run("plan", "lenet5", "--inference", "--batch-size", 7).out
    assert inference.startswith("lenet5, inference, batch 7, kernels for a cpu\n")
    assert "gradient" not in inference
    assert "optimizer" not in inference
    assert inference.splitlines()[-1].endswith("for a batch of 7")
    shaped = run("plan", "lenet5", "--input-shape", "3,40,30", "--classes", 7).out
    assert re.search(r"^input output +3x40x30 ", shaped, re.MULTILINE)
    assert re.search(r"^logits output +7x1x1 ", shaped, re.MULTILINE)
    assert "optimizer" not in run("plan", "lenet5", "--optimizer", "sgd").out.split("hyperparameters")[0][:-10]
    assert run("plan", net).out.startswith("net.py:net, training")
    sizes = []
    for storage in ("float32", "float16"):
        shown = run("plan", "lenet5", "--inference", "--input-shape", "1,200,200", "--storage", storage).out
        found = re.search(r"^input output .* ([0-9.]+) MiB +[0-9.]+% +([0-9.]+) MiB$", shown, re.MULTILINE)
        assert found, shown
        sizes.append(float(found.group(1)))
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.02)
    from_file = run("plan", trained).out
    assert from_file.startswith(f"{trained}, training")
    assert re.search(r"^input output +1x8x8 ", from_file, re.MULTILINE)


@pytest.mark.parametrize(("storage", "has_scale"), [("float32", False), ("bfloat16", False), ("float16", True)])
def test_plan_of_training_with_narrow_storage(run, no_devices, storage, has_scale) -> None:
    result = run("plan", "lenet5", "--storage", storage)
    said = f"Numbers between layers are {storage}, in memory alone: kernels compute in float32."
    assert (said in result.out) == (storage != "float32")
    assert ("loss scale" in result.out) == has_scale


def test_precision_and_storage_say_one_thing(run, two_devices) -> None:
    for precision, storage in (("bf16", "bfloat16"), ("fp16", "float16")):
        texts = [
            run("plan", "lenet5", *given).out
            for given in (
                ("--precision", precision),
                ("--storage", storage),
                ("--precision", precision, "--storage", storage),
            )
        ]
        assert texts[0] == texts[1] == texts[2]
        assert f"Numbers between layers are {storage}, in memory alone: kernels compute in float32." in texts[0]
    failed = run("plan", "lenet5", "--precision", "bf16", "--storage", "float16")
    assert (failed.status, failed.out) == (1, "")
    hint = "Received storage=float16. Hint: leave one of the two out."
    assert f"storage: precision bf16 keeps bfloat16 between layers. {hint}" in failed.err
    assert "tf32 needs an NVIDIA GPU" in run("plan", "lenet5", "--precision", "tf32", "--device", "cpu").err
    vars(choose("gpu"))["model"] = replace(GENERIC["gpu"], capability=(9, 0))
    for given in (("--precision", "bf16"), ("--storage", "bfloat16")):
        assert (
            "bfloat16, convolutions multiply them on tensor cores"
            in run("plan", "lenet5", *given, "--device", "gpu").out
        )


def test_a_device_is_of_the_precision_that_its_storage_says() -> None:
    assert settle("fp32", "bfloat16") == ("bf16", BFLOAT16)
    assert settle("fp32", "float16") == ("fp16", FLOAT16)
    assert settle("bf16", "float32") == settle("bf16", "bfloat16") == ("bf16", BFLOAT16)
    assert settle("tf32", "float16") == ("tf32", FLOAT16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lenet"], "MODEL: it must be one of blobnet's models, or a function of yours. Received name=lenet. Hint: "),
        (["lenet5", "--input-shape", "1,2,2"], "pool2 (MaxPool2D): the window must not be larger than the padded"),
        (["lenet5", "--input-shape", "64"], "lenet5: this model takes images, (units, height, width). Received"),
        (["no.h5"], "no.h5: there must be such a file."),
        (["no.h5", "--classes", "3"], "MODEL: a model in a file has its shape: --input-shape and --classes are for "
                                      "others. Received file=no.h5."),
        (["lenet5", "--classes", "1"], "CrossEntropy: the model's output must be one logit for each of at least 2"),
        (["lenet5", "--device", "zzz"], "device: the device must be one that OpenCL lists. Received device=zzz."),
    ],
)  # fmt: skip
def test_plan_errors(run, arguments, message) -> None:
    result = run("plan", *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: {message}")


@pytest.mark.parametrize("more", [(), ("--inference",)])
def test_plan_draws_what_holds_memory(run, more) -> None:
    result = run("plan", "lenet5", "--plot", "memory.png", *more)
    assert (result.status, result.err) == (0, "saved memory.png\n")
    assert result.out == run("plan", "lenet5", *more).out
    with pytest.importorskip("PIL.Image").open("memory.png") as picture:
        assert picture.size[0] > 1000
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    activations, deltas = (
        (np.abs(pixels - colour).sum(axis=1) < 9).mean() for colour in ((240, 176, 74), (217, 96, 59))
    )
    assert activations > 0.01
    assert (deltas > 0.01) == (not more)
    assert run("plan", "lenet5", "--plot", "a.jpg").err.startswith("error: --plot: the file's name must end in .png")
    assert "no/a.png: the folder of the file must exist" in run("plan", "lenet5", "--plot", "no/a.png").err


# -- the report --------------------------------------------------------------------------------------------------------


def test_report_counts_what_there_is() -> None:
    model = graph.sequential(
        [layers.Input(1, 4, 6, name="in"), layers.Conv2D(2, 3, padding=1, name="conv"), layers.Dense(3, name="out")]
    )
    plan = make_plan(model, 10, loss=losses.MeanSquaredError(), training=True)
    memory = {"optimizer velocity": 4000}
    text = str(report(plan, reserved=memory, updates=2, limits=Limits("box", 1 << 20, 1 << 19)))
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    layout = plan.outputs["in"].layout
    zeros = 1 - 24 / layout.unit_memory_elements
    assert lines["in output"].split() == [
        "in", "output", "1x4x6", *format_bytes(40 * layout.memory_elements).split(), f"{zeros:.0%}",
        *format_bytes(plan.buffers["in output"].bytes(10)).split(),
    ]  # fmt: skip
    assert lines["optimizer velocity"].split() == ["optimizer", "velocity", "3.9", "KiB", "3.9", "KiB"]
    assert lines["launches"].startswith(f"launches            {len(plan.calls) + 2} a batch (forward ")
    assert lines["launches"].endswith(", update 2)")
    moving = [call for _, call in plan.calls if call.moves]
    size = format_bytes(sum(call.bytes(10) for call in moving))
    assert lines["only moving data"] == f"only moving data    {len(moving)}, {size}"
    assert lines["total"].endswith(f"{format_bytes(plan.bytes() + 4000)} for a batch of 10")
    assert format_bytes(plan.largest_allocation()) in lines["largest allocation"]
    assert f"{plan.largest_batch(1 << 20, 1 << 19, 4000):,} (box: 1.0 MiB, 512.0 KiB a buffer)" in text
    every_storage = {name for name in plan.placed if name}
    shown = {line.split("  ")[0].removeprefix("+ ") for line in text.splitlines()}
    assert every_storage <= shown


def test_report_names_layers_that_move_values() -> None:
    start = layers.Input(4, 6, 5)()
    first, second = layers.split(layers.Conv2D(8, 3, padding=1)(start), [4, 4])
    plan = make_plan(graph.from_nodes(start, layers.Interleave()([second, first])), 2)
    assert plan.copies == []
    size = format_bytes(2 * 4 * 2 * 8 * 30)
    text = str(report(plan))
    assert f"\n  copying I0, I1 (Interleave)  1, {size}: units in another order\n" in text
    assert max(map(len, text.splitlines())) <= 80


def test_report_counts_what_is_fused() -> None:
    start = layers.Input(1, 4, 6)()
    node = layers.Conv2D(1, 3, padding=1, activation="relu")(start)
    node = layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(1, 3, padding=1)(node)) + node)
    model = graph.from_nodes(start, node)
    wanted = "fused               2 Activation, 1 BatchNorm, 1 Add, into the launches of the layers before them\n"
    assert wanted in str(report(make_plan(model, 2)))
    pooling = str(make_plan(graph.from_nodes(start, layers.MaxPool2D(2)(start)), 2))
    assert "fused               0\nonly moving data    0\n" in pooling


def test_report_names_copies() -> None:
    start = layers.Input(1, 4, 6, name="in")()
    branch = layers.Conv2D(1, 1, name="conv")(start)
    model = graph.from_nodes(start, layers.Concat(name="join")([branch, branch]))
    plan = make_plan(model, 2)
    assert plan.copies == ["join forward (conv comes in more than once)"] * 2
    size = format_bytes(2 * 2 * 2 * 24 * 4)  # Read and written: 2 copies of 2 samples of 24 values.
    assert f"  copying blobs     {len(plan.copies)}, {size}: {', '.join(plan.copies)}\n" in str(plan)


def test_report_counts_launches_that_only_move_data() -> None:
    """Weights of 3 x 2 x 3 x 3 become a matrix of 9 * 2 rows and one of zeros, of 32 columns: once, in inference."""
    start = layers.Input(2, 4, 6, name="in")()
    node = layers.Conv2D(3, 3, padding=1, bias=False, name="conv")(layers.Conv2D(2, 1, bias=False, name="one")(start))
    tuning = tuning_for("gpu", only={"tiled"})
    plan = make_plan(graph.from_nodes(start, node), 5, tuning=tuning)
    packs = plan.phase("constant")
    assert [call.bytes(5) for call in packs if call.label.startswith("conv ")] == [4 * (3 * 2 * 9 + (9 * 2 + 1) * 32)]
    others = len(plan.calls) - len(packs)
    packed = f"2, {format_bytes(sum(call.bytes(5) for call in packs))} when weights change"
    lines = str(plan).splitlines()
    assert f"launches            {others} a batch (forward {others}), 2 when weights change" in lines
    assert f"only moving data    {packed}" in lines
    assert f"  packing weights   {packed}" in lines
    training = make_plan(plan.request.graph, 5, tuning=tuning, training=True, loss=losses.MeanSquaredError())
    moving = [call for _, call in training.calls if call.moves]
    assert sum(len(call.each) for call in moving) > 2
    assert not training.phase("constant")
    size = format_bytes(sum(call.bytes(5) for call in moving))
    assert f"only moving data    {len(moving)}, {size}" in str(training).splitlines()


def test_bytes_of_a_launch() -> None:
    """Data cells of blobs; of what clears halos, all but these."""
    layout = BlobLayout.padded(Shape(3, 4, 5), Halo((1, 2), (1, 1)), slack=7)
    clearing = KernelCall(ZERO_HALO, "clear", GlobalSize(1, 1, 3), {"OUTPUT": Blob("a", layout)})
    assert clearing.bytes(6) == 4 * 6 * 3 * layout.halo_mask().sum()
    (copying,) = copy_call("copy", Blob("a", layout), Blob("b", BlobLayout.padded(Shape(3, 4, 5))), Tuning())
    assert copying.bytes(6) == 4 * 6 * 2 * 60


def test_an_addition_does_not_only_move_data() -> None:
    blob = Blob("a", BlobLayout.padded(Shape(1, 2, 3)))
    for accumulate in (False, True):
        (call,) = copy_call("copy", blob, Blob("b", blob.layout), Tuning(), accumulate=accumulate)
        assert call.moves == (None if accumulate else COPYING)


def test_readable() -> None:
    sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 30, 2 << 40, 5 << 50]
    shown = ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB", "5120.0 TiB"]
    assert [format_bytes(size) for size in sizes] == shown


def test_state_of_optimizers_is_counted(run, no_devices) -> None:
    rows = [line.split("  ")[0] for line in run("plan", "lenet5", "--optimizer", "sgd").out.splitlines()]
    table = lenet5().plan(128).request.parameters
    assert [row for row in rows if row.startswith("optimizer")] == [*SGD().memory(table)]


def test_a_plan_draws_no_weights(run, monkeypatch) -> None:
    def draw(*_: object) -> None:
        raise AssertionError("weights are not needed here")

    monkeypatch.setattr("blobnet.layers.initializers.initialize", draw)
    assert run("plan", "lenet5").status == 0
    result = run("plan", "lenet5", "--input-shape", "3,4000,6000")
    assert result.status == 1
    assert "must have at most 1073741824 elements. Received of=parameters, elements=2870421776." in result.err


def test_plan_of_many_devices(run, no_devices) -> None:
    arguments = ["plan", "lenet5", "--devices", 4, "--batch-size", 64, "--input-shape", "1,28,28"]
    result = run(*arguments, "--devices-per-host", 2, "--step-time", 10)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("lenet5, training, batch 8, kernels for a cpu\n")
    text = result.out.partition("\n\ndevices ")[2]
    assert text.startswith("            4, 2 a host; a batch of 64 in 8 shards of 8, 2 a device\n")
    assert max(map(len, result.out.splitlines())) <= 130
    # Gradients, each in whole 16s, all of them at each level, since they are few.
    elements = sum(-(-spec.elements // 16) * 16 for spec in lenet5().graph.named_parameters.values() if spec.trainable)
    assert f"distance 1        {format_bytes(4 * elements)}\n" in text
    assert f"distance 2        {format_bytes(4 * elements)}\n" in text
    assert f"each sends {format_bytes(8 * elements)} a step, in 1 bucket, after the backward pass" in text
    seconds = 5e-6 + 4 * elements / 1.26e9 + 20e-6 + 4 * elements / 50e9
    assert f"predicted           {1e3 * seconds:.3g} ms through MPI on one host (" in text
    assert f"efficiency        {0.01 / (0.01 + seconds):.3f} of 4 devices at least, with steps of 10 ms" in text
    assert "gradient sum" in result.out


def test_plan_of_many_gpus(run, two_devices) -> None:
    result = run(
        "plan", "lenet5", "--devices", 4, "--batch-size", 64, "--input-shape", "1,28,28", "--devices-per-host", 2
    )
    assert (result.status, result.err) == (0, "")
    elements = sum(-(-spec.elements // 16) * 16 for spec in lenet5().graph.named_parameters.values() if spec.trainable)
    # Within the host, then between hosts.
    seconds = COPIES.latency + 4 * elements / COPIES.bandwidth + 20e-6 + 4 * elements / 50e9
    assert (
        f"predicted           {1e3 * seconds:.3g} ms through copies over NVLink (measured, two H200s) and" in result.out
    )
    assert "ms through MPI on one host and page-locked memory (" in result.out
    # On one host all swap at once, here all of the gradients.
    result = run("plan", "lenet5", "--devices", 4, "--batch-size", 64, "--input-shape", "1,28,28")
    seconds = COPIES.latency + 3 * 4 * elements / COPIES.bandwidth
    assert f"predicted           {1e3 * seconds:.3g} ms through copies over NVLink (" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", 3], "MPI: every rank must have as many shards of a batch, and at least one."),
        (["--devices", 4, "--batch-size", 12], "shards: the shards must divide a batch."),
        (["--devices", 4, "--devices-per-host", 3], "--devices-per-host: it must be a power of two"),
        (["--devices", 4, "--inference"], "--devices: gradients alone are exchanged"),
        (["--shards", 4], "--shards: it is for a plan with --devices"),
    ],
)
def test_many_devices_that_make_no_sense(run, no_devices, arguments, message) -> None:
    result = run("plan", "lenet5", *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: {message}")
