"""Weights in safetensors files: torchvision's networks into ours and back, and files that are not to be trusted."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.command_line.model_argument import find_model, known_models
from blobnet.errors import FileError, OptionError, ShapeError
from blobnet.interop import timm_names, torch_names
from blobnet.layers import initializers
from blobnet.layers.base import ParameterSpec
from tests.interop.damage import refusals
from tests.interop.networks import STOOD_FOR, random_weights, samples, timm, torchvision

safetensors = pytest.importorskip("safetensors")

#: Sides of the samples that networks are compared on; others are built for 64.
SIDES = {"alexnet": 224, "vgg": 224, "inception_v3": 107}


#: Networks of sizes that torchvision does not name, by its class.
OTHER_SIZES = {
    "vit_tiny": (
        "VisionTransformer",
        {"image_size": 64, "patch_size": 16, "num_layers": 12, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768},
    )
}


#: The state dicts of torchvision 0.29's networks for 7 classes: entries, and what :func:`digest` makes of their lines.
STATES = {
    "alexnet": (16, "36ff5c6f9518bdda"),
    "convnext_tiny": (182, "801493d341ad48e2"),
    "densenet121": (606, "c1f36bd893bf1695"),
    "densenet161": (806, "8f5d566e5e387ba9"),
    "efficientnet_b0": (311, "a5e0f6a0f1bf7ac2"),
    "googlenet": (287, "78945f9e157ee6f0"),
    "inception_v3": (472, "236acc930940e327"),
    "mobilenet_v2": (262, "681abe07a7b80c71"),
    "mobilenet_v3_small": (210, "10e55e423f9e88ee"),
    "resnet101": (522, "e444472f424d8527"),
    "resnet18": (102, "94a400306e498c6d"),
    "resnet34": (182, "e5541cca32f96097"),
    "resnet50": (267, "f2f27789693418d5"),
    "shufflenet_v2_x1_0": (282, "ecc16e14710528cf"),
    "squeezenet1_1": (52, "2f65ca451445ecce"),
    "vgg11": (22, "efe5bca9b722139a"),
    "vgg11_bn": (54, "4ba1afbd4747e25d"),
    "vgg13": (26, "e139bbe277f1f94b"),
    "vgg13_bn": (66, "5900f33f320a7cfb"),
    "vgg16": (32, "e9638b84165a72d5"),
    "vgg16_bn": (84, "556accec88ea2c26"),
    "vgg19": (38, "12a67aa538301397"),
    "vgg19_bn": (102, "6596fa5fc2f69f3e"),
    "vit_tiny": (152, "89d6b9f2975be541"),
}


#: timm's networks that blobnet has too, by our names, and their options; of others docs/weights.md says what differs.
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "convnext_tiny": ("convnext_tiny", {}),
    "densenet121": ("densenet121", {}),
    "densenet161": ("densenet161", {}),
    "efficientnet_b0": ("efficientnet_b0", {}),
    "inception_v3": ("inception_v3", {}),
    "mobilenet_v2": ("mobilenetv2_100", {}),
    "resnet101": ("resnet101", {}),
    "resnet18": ("resnet18", {}),
    "resnet34": ("resnet34", {}),
    "resnet50": ("resnet50", {}),
    **{f"vgg{depth}{norms}": (f"vgg{depth}{norms}", {}) for depth in (11, 13, 16, 19) for norms in ("", "_bn")},
    "vit_tiny": ("vit_tiny_patch16_224", {"img_size": 64}),
}


def digest(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, str]:
    """How many entries a state dict has, and a hash of their names and shapes."""
    lines = sorted(f"{name} {shape}" for name, shape in shapes.items())
    return len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def torchvision_networks() -> list[str]:
    models = torchvision().models
    return [name for name in known_models() if name in models.list_models() or name in OTHER_SIZES]


def built(name: str, classes: int) -> bn.Model:
    side = next((side for start, side in SIDES.items() if name.startswith(start)), 64)
    return find_model(name).build((3, side, side), classes, (), 0)


def published(name: str, classes: int, seed: int = 0) -> Any:
    """Torchvision's network with random weights and statistics."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    models, options = torchvision().models, {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": False}
    if name in OTHER_SIZES:
        kind, sizes = OTHER_SIZES[name]
        network = getattr(models, kind)(**options, **sizes)
    else:
        network = models.get_model(name, weights=None, **options)
    for key, values in network.state_dict().items():
        if key.endswith("running_mean"):
            values.normal_(0, 0.1)
        elif key.endswith("running_var"):
            values.uniform_(0.5, 1.5)
        elif key.endswith(("layer_scale", "class_token")):
            values.normal_(0, 1)
    return network.eval()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "published_name" in metafunc.fixturenames:
        try:
            names = torchvision_networks()
        except pytest.skip.Exception:
            names = []
        quick = ("resnet18", "squeezenet1_1", "vit_tiny")
        has_own = metafunc.definition.originalname == "test_published_networks_into_ours_and_back"
        long = [pytest.mark.long] if has_own else []
        params = [pytest.param(name, marks=() if name in quick else long) for name in names]
        metafunc.parametrize("published_name", params)


def test_names_and_shapes_of_published_networks(published_name: str) -> None:
    with pytest.importorskip("torch").device("meta"):
        state = published(published_name, 7).state_dict()
    wanted = {name: tuple(values.shape) for name, values in state.items() if not name.endswith(torch_names.COUNTS)}
    assert {entry.name: entry.shape for entry in torch_names.entries(built(published_name, 7).graph)} == wanted
    assert digest(wanted) == STATES[published_name]


@pytest.mark.parametrize("name", STATES)
def test_names_and_shapes_are_torchvisions_where_it_is_not_installed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(spec: ParameterSpec, *_: object) -> Any:
        return np.zeros(spec.shape, np.float32)

    monkeypatch.setattr(initializers, "initialize", zeros)
    assert digest({entry.name: entry.shape for entry in torch_names.entries(built(name, 7).graph)}) == STATES[name]


def test_published_networks_into_ours_and_back(device: Any, tmp_path: Path, published_name: str) -> None:
    if published_name in STOOD_FOR:
        pytest.skip("another network of its family is compared")
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    model, theirs = built(published_name, 7), published(published_name, 7)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    model.load_safetensors(tmp_path / "theirs.safetensors")
    x = samples(model, 1 if model.graph.input.shape.height > 100 else 2)[next(iter(model.graph.inputs))]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    found = model.predict(x, device=device)
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()), rtol=1e-4)

    random_weights(model, 1)
    model.set_normalization(np.zeros(3), np.ones(3))
    model.save_safetensors(tmp_path / "ours.safetensors")
    state = load_file(tmp_path / "ours.safetensors")
    theirs.load_state_dict(state, strict=True)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    found = model.predict(x, device=device)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()), rtol=1e-4)


def test_the_table_of_the_documents_is_what_is_tested() -> None:
    """docs/weights.md: which names are read, and which compute the same."""
    text = (Path(__file__).parents[2] / "docs/weights.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", text.partition("torchvision's names | timm's")[2], re.MULTILINE)
    found: dict[str, list[str]] = {"torchvision": [], "timm": []}
    all_names: list[str] = []
    for networks, *same in rows[: next(n for n, row in enumerate(rows) if "unet_1d" in row[0]) + 1]:
        names = re.findall(r"`(\w+)`", networks)
        if "vgg11" in names:
            names = [name for name in known_models() if name.startswith("vgg")]
        all_names += names
        for origin, words in zip(found, same, strict=True):
            found[origin] += names if words.startswith("the same numbers") else []
    assert sorted(all_names) == known_models()
    assert sorted(found["torchvision"]) == sorted(STATES)
    assert sorted(found["timm"]) == sorted(TIMM)


def of_timm(name: str, classes: int) -> Any:
    torch, published = pytest.importorskip("torch"), timm()
    kind, options = TIMM[name]
    torch.manual_seed(0)
    return published.create_model(kind, num_classes=classes, **options).eval()


@pytest.mark.parametrize("name", TIMM)
def test_names_and_shapes_of_timms_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.importorskip("torch").device("meta"):
        state = of_timm(name, 7).state_dict()
    wanted = {name: tuple(values.shape) for name, values in state.items() if not name.endswith(torch_names.COUNTS)}
    monkeypatch.setattr(initializers, "initialize", lambda spec, *_: np.zeros(spec.shape, np.float32))
    side = 224 if name.startswith("vgg") else next((s for start, s in SIDES.items() if name.startswith(start)), 64)
    graph = find_model(name).build((3, side, side), 7, (), 0).graph
    tables = [torch_names.entries(graph, families) for families in (timm_names.FAMILIES, torch_names.FAMILIES)]
    assert wanted in [{entry.name: entry.shape for entry in found} for found in tables]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name not in ("resnet18", "mobilenet_v2", "vit_tiny") else ())
        for name in TIMM
        if name not in STOOD_FOR
    ],
)
def test_timms_networks_into_ours(device: Any, tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    if name == "vgg16":
        name = "vgg11_bn"  # Both kinds of layers, and less to compute.
    theirs = of_timm(name, 7)
    for key, values in theirs.state_dict().items():
        if key.endswith("running_mean"):
            values.normal_(0, 0.1)
        elif key.endswith("running_var"):
            values.uniform_(0.5, 1.5)
        elif key.endswith(("gamma", "cls_token", "pos_embed")) or (
            key.endswith("bias") and not key.endswith("bn.bias")
        ):
            values.normal_(0, 0.5)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    side = 224 if name.startswith("vgg") else next((s for start, s in SIDES.items() if name.startswith(start)), 64)
    model = find_model(name).build((3, side, side), 7, (), 0)
    model.load_safetensors(tmp_path / "theirs.safetensors")
    x = samples(model, 1)[next(iter(model.graph.inputs))]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    found = model.predict(x, device=device)
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()), rtol=1e-4)
    assert np.abs(expected).max() > 1e-3


def test_own_names_and_all_parameters(device: Any, tmp_path: Path) -> None:
    """A module with attributes of the layers' names takes the file, and what the input does comes back."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.conv, self.norm, self.slopes = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4)
            self.groups, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 6, 2, 2)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.last = nn.LayerNorm(6)

        def forward(self, x: Any) -> Any:
            x = self.up(self.groups(self.slopes(self.norm(self.conv(x)))))
            x = x.flatten(2).transpose(1, 2)
            return self.last(self.attention(x, x, x, need_weights=False)[0]).transpose(1, 2)

    images = layers.Input(3, 5, 6, name="image")()
    node = layers.BatchNorm(name="norm")(layers.Conv2D(4, 3, name="conv")(images))
    node = layers.GroupNorm(2, name="groups")(layers.PReLU(name="slopes")(node))
    node = layers.Reshape((6, -1))(layers.ConvTranspose2D(6, 2, 2, name="up")(node))
    node = layers.LayerNorm(name="last")(layers.MultiHeadAttention(2, name="attention")(node))
    model = bn.Model(images, node)
    random_weights(model)
    path = tmp_path / "model.safetensors"
    model.save_safetensors(path)
    module = Net().eval()
    module.load_state_dict(load_file(path), strict=True)
    x = samples(model)["image"]
    shape = (-1, 1, 1)
    given = (x - model.weights["image/mean"].reshape(shape)) / model.weights["image/deviation"].reshape(shape)
    with torch.no_grad():
        expected = module(torch.from_numpy(given)).numpy()
    np.testing.assert_allclose(model.predict(x, device=device), expected, atol=1e-4)

    other = bn.Model(images, node, seed=5)
    other.load_safetensors(path)
    assert other.weights.keys() == model.weights.keys()
    for name, values in model.weights.items():
        np.testing.assert_array_equal(other.weights[name], values)


def small(classes: int = 4) -> bn.Model:
    return bn.Sequential(
        [
            layers.Input(2, 4, 4, name="input"),
            layers.Conv2D(3, 3, name="conv"),
            layers.BatchNorm(name="norm"),
            layers.Dense(classes, name="logits"),
        ]
    )


def tensors(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    arrays = {
        "conv.weight": random.normal(size=(3, 2, 3, 3)),
        "conv.bias": random.normal(size=3),
        "norm.weight": random.normal(size=3),
        "norm.bias": random.normal(size=3),
        "norm.running_mean": random.normal(size=3),
        "norm.running_var": random.uniform(1, 2, size=3),
        "logits.weight": random.normal(size=(4, 12)),
        "logits.bias": random.normal(size=4),
    }
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()} | changes
    return {name: values for name, values in arrays.items() if values is not None}


def write(path: Path, arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    from safetensors.numpy import save_file

    save_file(arrays, path, metadata)
    return path


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_floats_and_inputs_that_stay(tmp_path: Path, kind: Any) -> None:
    model = small()
    model.set_normalization([1, 2], [3, 4])
    arrays = tensors(**{"norm.num_batches_tracked": np.array(7)})
    arrays = {name: values if values.dtype.kind == "i" else values.astype(kind) for name, values in arrays.items()}
    model.load_safetensors(write(tmp_path / "model.safetensors", arrays))
    np.testing.assert_array_equal(model.weights["conv/weight"], arrays["conv.weight"].astype(np.float32))
    np.testing.assert_array_equal(model.weights["norm/running_variance"], arrays["norm.running_var"].astype(np.float32))
    np.testing.assert_array_equal(model.weights["input/deviation"], [3, 4])


def header(content: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def of(dtype: str, shape: list[int], offsets: list[int]) -> dict[str, Any]:
    return {"conv.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


#: Files that lie; none of them may take memory or time, or give anything but an error.
HOSTILE = {
    "empty": b"",
    "short": b"\x01\x02",
    "no header": struct.pack("<Q", 0),
    "header longer than the file": header({}, length=10_000),
    "header of 2^63": header({}, length=2**63),
    "no JSON": header(b"{nothing"),
    "a list": header([]),
    "deep": header(b'{"a":' * 5000 + b"0" + b"}" * 5000),
    "shape larger than the data": header(of("F32", [2**20, 2**20], [0, 8]), bytes(8)),
    "shape that overflows": header(of("F32", [2**40, 2**40], [0, 8]), bytes(8)),
    "negative shape": header(of("F32", [-1], [0, 8]), bytes(8)),
    "offsets behind the file": header(of("F32", [2], [2**40, 2**40 + 8]), bytes(8)),
    "offsets backwards": header(of("F32", [2], [8, 0]), bytes(8)),
    "overlap": header(of("F32", [2], [0, 8]) | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "unknown type": header(of("F31", [2], [0, 8]), bytes(8)),
    "rest": header({}, bytes(8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    path, model = tmp_path / "model.safetensors", small()
    path.write_bytes(HOSTILE[name])
    before = model.weights
    with pytest.raises(
        FileError, match="a safetensors file must be whole, but this one is cut short or damaged"
    ) as caught:
        model.load_safetensors(path)
    assert str(caught.value).startswith(str(path))
    assert all(np.array_equal(before[item], values) for item, values in model.weights.items())


def test_truncated_and_changed_files(tmp_path: Path) -> None:
    """Whatever is cut off or changed: an error of ours, or other numbers."""
    path, model = tmp_path / "model.safetensors", small()
    model.save_safetensors(path)
    assert refusals(path, model.load_safetensors, cuts=30, lengths=[0, 7, 8, 9, -1], places=3) > 100


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"conv.weight": None, "conv2.weight": np.zeros(3, np.float32)},
            FileError,
            "the tensors of the file must be those of the network. Received missing=conv.weight, extra=conv2.weight.",
        ),
        (
            {"conv.weight": np.zeros((3, 2, 5, 5), np.float32)},
            ShapeError,
            "conv.weight must have the shape of conv/weight. Received given=(3, 2, 5, 5), wanted=(3, 2, 3, 3).",
        ),
        (
            {"logits.weight": np.zeros((10, 12), np.float32), "logits.bias": np.zeros(10, np.float32)},
            ShapeError,
            "logits.weight must have the shape of logits/weight. Received given=(10, 12), wanted=(4, 12). Hint: for "
            "another number of classes, build the network for 10, and then model.with_classes.",
        ),
        (
            {"conv.bias": np.zeros(3, np.int32)},
            FileError,
            "tensors must be of the types BF16, F16, F32, F64. Received tensor=conv.bias, type=I32. Hint: tensor.",
        ),
        (
            {"logits.bias": np.array(1, np.float32)},
            ShapeError,
            "logits.bias must have the shape of logits/bias. Received given=(), wanted=(4,).",
        ),
        ({"conv.bias": np.array([0, np.nan, 0], np.float32)}, OptionError, "every weight must be finite in float32"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, changes: Any, kind: type[Exception], message: str) -> None:
    path, model = write(tmp_path / "model.safetensors", tensors(**changes)), small()
    before = model.weights
    with pytest.raises(kind, match=re.escape(message)):
        model.load_safetensors(path)
    assert all(np.array_equal(before[name], values) for name, values in model.weights.items())


@pytest.mark.parametrize(
    "text", ["[1]", "[1, 2, 3]", "nothing", "[1, NaN]", "[[1, 2]]", "[0, 1]", '["a", "b"]', "[" * 5000]
)
def test_metadata_of_inputs(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "model.safetensors", tensors(), {"blobnet.input.input/deviation": text})
    with pytest.raises(FileError, match="the metadata of input/deviation must be"):
        small().load_safetensors(path)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("model.pt", b""),
        ("model.pth", b"x"),
        ("weights.pkl", b"x"),
        ("model.safetensors", b"PK\x03\x04"),
        ("m", b"\x80\x02"),
    ],
)
def test_pickles_are_refused(tmp_path: Path, name: str, start: bytes) -> None:
    (tmp_path / name).write_bytes(start + bytes(100))
    lines = f"    from safetensors.torch import save_file\n    save_file(torch.load('{name}', weights_only=True), "
    with pytest.raises(
        FileError, match=r"not read from pickles, which can run any code\. Hint: .* these two lines"
    ) as caught:
        small().load_safetensors(tmp_path / name)
    assert lines + f"'{Path(name).stem}.safetensors')" in str(caught.value)


@pytest.mark.parametrize("length", [0x80, 0x180])
def test_lengths_that_pickles_begin_with(tmp_path: Path, length: int) -> None:
    header = b'{"__metadata__":{"by":"hand"}}'.ljust(length)
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", length) + header)
    with pytest.raises(FileError, match="the tensors of the file must be those of the network"):
        small().load_safetensors(tmp_path / "m.safetensors")


def test_other_files_hold_no_weights(tmp_path: Path) -> None:
    small().save(tmp_path / "m.h5")
    rule = (
        r"m\.h5: weights must lie in a safetensors file, but this is an HDF5 file\. Hint: blobnet\.load reads a model"
    )
    with pytest.raises(FileError, match=rule):
        small().load_safetensors(tmp_path / "m.h5")


def test_files_of_weights_are_no_models(tmp_path: Path) -> None:
    small().save_safetensors(tmp_path / "m.safetensors")
    rule = (
        r"must be HDF5, but this is a safetensors file\. Received .* Hint: model\.load_safetensors reads its weights, "
    )
    with pytest.raises(FileError, match=rule):
        bn.load(tmp_path / "m.safetensors")


def test_model_files_that_are_pickles_are_refused_with_the_lines(tmp_path: Path) -> None:
    """Where a model is asked for, as by ``--init-from``, and not weights alone."""
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FileError, match="a model file must be HDF5, but this is a zip archive") as caught:
        bn.load(tmp_path / "model.pt")
    assert "save_file(torch.load('model.pt', weights_only=True), 'model.safetensors')" in str(caught.value)


def test_the_two_lines_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand in the error."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.save({name: torch.from_numpy(values) for name, values in tensors().items()}, "m.pt")
    model = small()
    with pytest.raises(FileError) as caught:
        model.load_safetensors("m.pt")
    lines = str(caught.value).splitlines()[1:]
    exec("\n".join(line.strip() for line in lines), {"torch": torch})
    model.load_safetensors("m.safetensors")
    np.testing.assert_array_equal(model.weights["conv/weight"], tensors()["conv.weight"])


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there must be such a file"):
        small().load_safetensors(tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="it is a folder, and no file"):
        small().load_safetensors(tmp_path)
    with pytest.raises(FileError, match="the folder of the file must exist"):
        small().save_safetensors(tmp_path / "none" / "model.safetensors")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    with pytest.raises(OptionError, match=r'need the package safetensors.*pip install "blobnet\[safetensors\]"'):
        small().save_safetensors(tmp_path / "model.safetensors")


def test_networks_that_only_look_like_one_of_a_family_keep_their_names() -> None:
    for name in ("lenet5", "resnet8", "fashion_cnn"):
        graph = find_model(name).build((1, 28, 28), 10, (), 0).graph
        found = [entry.name for entry in torch_names.entries(graph)]
        assert found[-1] == "logits.bias", name


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.", "model.backbone."])
def test_types_and_prefixes_of_what_pytorch_saves(tmp_path: Path, kind: str, prefix: str) -> None:
    """As DataParallel, torch.compile and modules within others have them."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(getattr(torch, kind))
    torch.nn.init.normal_(module[0].weight)
    state = {
        f"{prefix}{name.replace('0.', 'a.').replace('1.', 'b.')}": item for name, item in module.state_dict().items()
    }
    save_file(state, tmp_path / "m.safetensors")
    model = bn.Sequential([layers.Input(3, 6, 6), layers.Conv2D(4, 3, name="a"), layers.BatchNorm(name="b")])
    model.load_safetensors(tmp_path / "m.safetensors")
    assert np.array_equal(model.weights["a/weight"], state[f"{prefix}a.weight"].float().numpy())
    assert np.array_equal(model.weights["b/running_variance"], state[f"{prefix}b.running_var"].float().numpy())
    # Tensors with and without a prefix are those of no network.
    if prefix:
        state["a.weight"] = state.pop(f"{prefix}a.weight")
        save_file(state, tmp_path / "m.safetensors")
        with pytest.raises(FileError, match="the tensors of the file must be those of the network"):
            model.load_safetensors(tmp_path / "m.safetensors")
