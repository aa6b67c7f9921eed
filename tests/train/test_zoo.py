"""The networks of blobnet.models: their size, their plans, and what they compute, against torchvision's and Keras's."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import models
from blobnet.command_line.model_argument import known_models
from blobnet.device.device import Device
from blobnet.errors import ShapeError
from blobnet.examination.reference import dropout
from blobnet.hardware.device_model import GENERIC
from blobnet.layers import initializers
from blobnet.layers.base import ParameterSpec
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.planning import report
from tests.bench.torch_twin import Twin
from tests.interop.networks import STOOD_FOR, torchvision

#: Trainable parameters at the defaults, as torchvision 0.29 says (``num_params`` of its weights); where it has no such
#: network, as the others say.
PUBLISHED = {
    "alexnet": 61_100_840,
    "convnext_tiny": 28_589_128,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "efficientnet_b0": 5_288_548,
    "googlenet": 6_624_904,
    "inception_v3": 27_161_264 - 3_326_696,  # less the auxiliary classifier
    "mobilenet_v1": 4_231_976,  # Keras 3: keras.applications.MobileNet
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "resnet18": 11_689_512,
    "resnet20": 269_722,  # He et al., table 6: 0.27 M
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet56": 853_018,  # the same: 0.85 M
    "resnet101": 44_549_160,
    "shufflenet_v2_x1_0": 2_278_604,
    "squeezenet1_1": 1_235_496,
    "vgg11": 132_863_336,
    "vgg11_bn": 132_868_840,
    "vgg13": 133_047_848,
    "vgg13_bn": 133_053_736,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240,
    "vgg19_bn": 143_678_248,
    "vit_tiny": 5_717_416,  # Touvron et al., table 1: 5 M; timm's deit_tiny_patch16_224 to the digit
}
#: Sides of small samples, odd where that is possible, of the networks that are compared with torchvision's: of families
#: that differ in depth and width alone, one or two. Counts of parameters tell the others.
SIZES = {
    "alexnet": 95,
    "convnext_tiny": 64,
    "densenet121": 65,
    "efficientnet_b0": 49,
    "googlenet": 71,
    "inception_v3": 96,
    "mobilenet_v2": 49,
    "mobilenet_v3_small": 65,
    "resnet18": 49,
    "resnet50": 49,
    "shufflenet_v2_x1_0": 65,
    "squeezenet1_1": 53,
    "vgg11_bn": 64,
    "vgg16": 33,
    "vit_tiny": 48,
}
#: What is also run on the device, forward and backward: kernels of all would take too long to build.
ON_DEVICE = ["shufflenet_v2_x1_0"]
#: The layers with launches that copy values, and do nothing else.
COPYING = {
    "resnet20": {"Contraction"},
    "resnet56": {"Contraction"},
    "shufflenet_v2_x1_0": {"Interleave"},
    "vit_tiny": {"Slice", "Tokens"},
}


@pytest.fixture
def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with weights of 0: drawing 138 million numbers takes seconds."""

    def zeros(spec: ParameterSpec, *_: object) -> FloatArray:
        return np.zeros(spec.shape, np.float32)

    monkeypatch.setattr(initializers, "initialize", zeros)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.usefixtures("no_numbers")
def test_as_many_parameters_as_published(name: str) -> None:
    assert getattr(models, name)().parameter_count == PUBLISHED[name]


@pytest.mark.usefixtures("no_numbers")
def test_unet_has_the_parameters_of_others_with_padding_and_norms() -> None:
    """Those of mateuszbuda's brain-segmentation, 32 to 512 units, from RGB to one class; the paper names no number."""
    model = models.unet((3, 256, 256), 1, filters=(32, 64, 128, 256, 512))
    assert model.parameter_count == 7_763_041


@pytest.mark.parametrize(("name", "count"), [("googlenet", 13_004_888), ("inception_v3", 27_161_264)])
@pytest.mark.usefixtures("no_numbers")
def test_auxiliary_classifiers(name: str, count: int) -> None:
    model = getattr(models, name)(auxiliary=True)
    assert model.parameter_count == count
    assert {vertex.shape.dimensions for vertex in model.graph.outputs.values()} == {(1000,)}
    plain = getattr(models, name)()
    own = set(model.graph.named_parameters) - set(plain.graph.named_parameters)
    assert own
    assert all(parameter.startswith("auxiliary") for parameter in own)


@pytest.mark.usefixtures("no_numbers")
def test_the_table_of_models_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+ \| [\d]+x[\dx]+) \| .+ \|$", text, re.MULTILINE))
    wanted = {}
    for name in known_models():
        model = getattr(models, name)()
        sizes = "x".join(map(str, next(iter(model.graph.inputs.values())).shape.dimensions))
        wanted[name] = f"{model.parameter_count:,} | {sizes}"
    assert rows == wanted


# -- plans -------------------------------------------------------------------------------------------------------------


def losses_of(model: Model) -> Any:
    outputs = model.graph.outputs
    own = {name: MeanSquaredError() if name == "noise" else CrossEntropy() for name in outputs}
    return own if len(own) > 1 else next(iter(own.values()))


#: Networks of more of the same blocks (STOOD_FOR) have the joins of the one that stands for them.
OF_EACH_FAMILY = [name for name in models.__all__ if name not in STOOD_FOR]


@pytest.mark.parametrize("name", [*OF_EACH_FAMILY, "googlenet with auxiliary", "inception_v3 with auxiliary"])
@pytest.mark.usefixtures("no_numbers")
def test_joins_and_residuals_cost_no_copy(name: str) -> None:
    name, _, option = name.partition(" with ")
    model = getattr(models, name)(**({option: True} if option else {}))
    for kind in GENERIC:
        for training in (True, False):
            plan = model.plan(2, training=training, loss=losses_of(model), device_class=kind)
            assert plan.copies == [], (kind, training)
            made = [call for _, call in plan.calls if (call.moves or "").startswith("copying")]
            assert {call.owner.kind for call in made} == COPYING.get(name, set()), (kind, training)
            facts = report.report(plan).facts
            assert facts["  copying blobs"] == "0"
            told = {key.strip(): value for key, value in facts.items()}
            for call in made:
                assert call.reason
                assert told[f"{call.moves} ({call.owner.kind})"].endswith(f": {call.reason}")


# -- the definitions ---------------------------------------------------------------------------------------------------


def with_random_weights(model: Model) -> Model:
    """As they start, norms, biases and factors would do nothing."""
    random = np.random.default_rng(5)
    weights = model.weights
    for key, values in weights.items():
        if values.ndim == 1 and not key.startswith("input/"):
            weights[key] = random.uniform(0.5, 1.5, values.shape).astype(np.float32)
    model.set_weights(weights)
    return model


def small(name: str) -> tuple[Model, FloatArray]:
    """A model for 10 classes, and a batch."""
    size = SIZES[name]
    model = with_random_weights(getattr(models, name)((3, size, size), 10))
    return model, np.random.default_rng(1).standard_normal((2, 3, size, size)).astype(np.float32)


def torchvision_network(name: str, model: Model) -> Any:
    """torchvision's network for the same samples."""
    theirs = torchvision().models
    from torch import nn

    if name == "vit_tiny":
        size = model.graph.input.shape.width
        return theirs.VisionTransformer(size, 16, 12, 3, 192, 768, num_classes=10)
    options: dict[str, Any] = {"googlenet": {"aux_logits": False, "init_weights": False}}
    options["inception_v3"] = {"init_weights": False}
    network = getattr(theirs, name)(weights=None, num_classes=10, **options.get(name, {}))
    if name == "inception_v3":
        network.AuxLogits = None
    if name.startswith(("alexnet", "vgg")):
        # For samples of any size torchvision resizes the planes that the first dense layer sees: here these are given.
        place = next(number for number, part in enumerate(network.classifier) if isinstance(part, nn.Linear))
        weight = next(spec for key, spec in model.graph.named_parameters.items() if key == "dense1/weight")
        network.avgpool, network.classifier[place] = nn.Identity(), nn.Linear(weight.shape[1], 4096)
    return network


def torchvision_names(network: Any) -> list[str]:
    """The names of a network's state, in the order of our parameters."""
    names = [name for name, values in network.state_dict().items() if values.ndim]
    for number, name in reversed(list(enumerate(names))):
        # Where a module has parameters beside other modules, they come first there, and here where they are used.
        behind = 8 if name.endswith("layer_scale") else 2 if name == "class_token" else 0
        if behind:
            names.insert(number + behind, names.pop(number))
    return names


def carry(model: Model, network: Any) -> None:
    """Gives a network of torchvision the weights of a model: both have them in one order."""
    import torch

    weights = {name: values for name, values in model.weights.items() if not name.startswith("input/")}
    for vertex in model.graph.vertices:
        if vertex.layer.kind == "MultiHeadAttention":  # These are one matrix there.
            thirds = [[f"{vertex.name}/{part}{kind}" for part in ("query", "key", "value")] for kind in ("", "_bias")]
            joined = [np.concatenate([weights[name] for name in names]) for names in thirds]
            weights |= {thirds[0][0]: joined[0], thirds[0][1]: joined[1]}
            weights = {name: values for name, values in weights.items() if name not in (*thirds[0][2:], *thirds[1])}
    names, state = torchvision_names(network), network.state_dict()
    assert len(names) == len(weights)
    for name, (own, values) in zip(names, weights.items(), strict=True):
        # There may be further axes of size 1.
        shapes = [[size for size in shape if size > 1] for shape in (state[name].shape, values.shape)]
        assert shapes[0] == shapes[1], (name, own)
        state[name].copy_(torch.tensor(values).reshape(state[name].shape))


def settings(network: Any) -> list[tuple[Any, ...]]:
    """The norms' numbers and the rates of dropout of a network of PyTorch, in order."""
    found: list[tuple[Any, ...]] = []
    for part in network.modules():
        kind = type(part).__name__
        if kind.startswith("BatchNorm"):
            found.append(("BatchNorm", part.eps, part.momentum))
        elif "LayerNorm" in kind:
            found.append(("LayerNorm", part.eps))
        elif (kind == "Dropout" or kind == "StochasticDepth") and part.p > 0:
            found.append((kind, round(part.p, 6)))
    return found


@pytest.mark.parametrize("name", SIZES)
def test_the_definition_is_torchvisions(name: str) -> None:
    torch = pytest.importorskip("torch")
    model, x = small(name)
    network = torchvision_network(name, model).eval()
    carry(model, network)
    with torch.no_grad():
        wanted = network.double()(torch.tensor(x).double())
        found = Twin(model).module.double().eval()(torch.tensor(x).double())
    assert wanted.std() > 0.01
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))
    kinds = {
        "BatchNorm": ("epsilon", "momentum"),
        "LayerNorm": ("epsilon",),
        "Dropout": ("rate",),
        "StochasticDepth": ("rate",),
    }
    own = [
        (vertex.layer.kind, *(round(getattr(vertex.layer, option), 6) for option in kinds[vertex.layer.kind]))
        for vertex in model.graph.vertices
        if vertex.layer.kind in kinds
    ]
    theirs = settings(network)
    for kind in kinds:
        rates = sorted(item for item in own if item[0] == kind), sorted(item for item in theirs if item[0] == kind)
        # Blocks without a sum have a rate there that nobody reads.
        assert rates[0] == (rates[1] if kind != "StochasticDepth" else [item for item in rates[1] if item in own])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Keras on PyTorch's
def test_mobilenet_v1_is_kerass(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    model = with_random_weights(models.mobilenet_v1((3, 64, 64), 10))
    network = keras.applications.MobileNet((64, 64, 3), weights=None, classes=10, classifier_activation=None)
    ours = {name: values for name, values in model.weights.items() if not name.startswith("input/")}
    theirs = []
    for values, target in zip(ours.values(), network.weights, strict=True):
        # Rows and columns first, then inputs and outputs; a depthwise filter's units are its inputs.
        if values.ndim == 2:
            values = values[:, :, None, None]
        if values.ndim == 4:
            values = values.transpose((2, 3, 0, 1) if "_dw_" in target.path else (2, 3, 1, 0))
        theirs.append(values)
    network.set_weights(theirs)
    x = np.random.default_rng(1).standard_normal((2, 3, 64, 64)).astype(np.float32)
    wanted = network.predict(x.transpose(0, 2, 3, 1), verbose=0)
    assert wanted.std() > 0.01
    assert np.abs(model.predict(x, device=device) - wanted).max() < 1e-4 * np.abs(wanted).max()


def small_resnet(torch: Any, weights: dict[str, Any], x: Any, depth: int) -> Any:
    """The CIFAR networks of He et al., section 4.2, written down for PyTorch."""
    functional = torch.nn.functional

    def convolution(values: Any, name: str, stride: int = 1) -> Any:
        weight = weights[f"{name}_conv/weight"]
        values = functional.conv2d(values, weight, stride=stride, padding=weight.shape[2] // 2)
        own = [weights[f"{name}_norm/{part}"] for part in ("running_mean", "running_variance", "scale", "shift")]
        return functional.batch_norm(values, *own)

    values = convolution(x, "stem").relu()
    for stage in (1, 2, 3):
        for block in range(1, depth + 1):
            name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
            branch = convolution(convolution(values, f"{name}_a", stride).relu(), f"{name}_b")
            if stride > 1:
                more = branch.shape[1] - values.shape[1]
                values = functional.pad(values[:, :, ::2, ::2], (0, 0, 0, 0, more // 2, more - more // 2))
            values = (values + branch).relu()
    return functional.linear(values.mean((2, 3)), weights["logits/weight"], weights["logits/bias"])


def test_resnet20_against_pytorch(device: Device) -> None:
    torch = pytest.importorskip("torch")
    model = with_random_weights(models.resnet20((3, 17, 14), 7))
    x = np.random.default_rng(1).standard_normal((2, 3, 17, 14)).astype(np.float32)
    weights = {name: torch.tensor(values).double() for name, values in model.weights.items()}
    wanted = small_resnet(torch, weights, torch.tensor(x).double(), 3).numpy()
    assert np.abs(model.predict(x, device=device) - wanted).max() < 2e-5 * np.abs(wanted).max()


# -- training ----------------------------------------------------------------------------------------------------------


def known_masks(torch: Any, model: Model, twin: Twin, count: int) -> None:
    """Has dropout of a twin use the masks of blobnet's first step of seed 0."""
    for vertex in model.graph.vertices:
        layer: Any = vertex.layer
        if layer.kind not in ("Dropout", "StochasticDepth"):
            continue
        elements = 1 if layer.is_whole else vertex.shape.elements
        mask = torch.tensor(dropout.dropout_mask(0, 0, vertex.index, count, elements, layer.rate))
        shape = (count, *((1,) * (1 + vertex.shape.rank) if layer.is_whole else vertex.shape.dimensions))
        twin.module.parts[vertex.name].forward = partial(torch.mul, mask.reshape(shape))


def gradients_of_both(name: str, device: Device | None) -> dict[str, tuple[FloatArray, npt.NDArray[np.float64]]]:
    """The gradients of a training batch, ours and PyTorch's in float64, with the same masks."""
    torch = pytest.importorskip("torch")
    model, x = small(name)
    y = np.array([3, 7])
    twin = Twin(model)
    known_masks(torch, model, twin, len(x))
    images = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    network = twin.module.double().train()
    torch.nn.functional.cross_entropy(network(images), torch.tensor(y)).backward()
    names = {"scale": "weight", "shift": "bias"}
    found = model.gradients(x, y, device=device)
    wanted = {"input": images.grad}
    for key in model.graph.trainable:
        layer, _, parameter = key.partition("/")
        wanted[key] = getattr(network.parts[layer], names.get(parameter, parameter)).grad
    assert set(found) == set(wanted)
    return {key: (found[key], values.numpy()) for key, values in wanted.items()}


@pytest.mark.parametrize("name", ON_DEVICE)
@pytest.mark.long
def test_gradients_and_outputs_are_those_of_the_twin(name: str, device: Device) -> None:
    torch = pytest.importorskip("torch")
    model, x = small(name)
    with torch.no_grad():
        wanted = Twin(model).module.double().eval()(torch.tensor(x).double()).numpy()
    assert np.abs(model.predict(x, device=device) - wanted).max() < 2e-5 * np.abs(wanted).max()
    both = gradients_of_both(name, device)
    # Where a shift does not change what a norm behind it gives, its gradient is 0, but for rounding.
    largest = max(np.abs(gradient).max() for _, gradient in both.values())
    for key, (found, gradient) in both.items():
        assert np.abs(found - gradient).max() < 1e-3 * np.abs(gradient).max() + 1e-5 * largest, key


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_patches_must_divide_the_sides() -> None:
    with pytest.raises(ShapeError, match=r"vit_tiny: height and width must be multiples of 16\. Received input="):
        models.vit_tiny((3, 224, 220))
