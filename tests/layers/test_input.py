"""Input: samples into a blob, normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.examination.measured import in_memory
from blobnet.layers import Input
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import run_layer_contract

LAYERS = [Input(3, 5, 7), Input(2, width=11), Input(9), Input(1, 1, 1), Input(2, 4, 67), Input(2, 3, 5, depth=4)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_contract(device: Device, layer: Input, device_class: str) -> None:
    shape = layer.output_shape([])
    samples = np.random.default_rng(5).normal(100, 50, (3, *in_memory(shape))).astype(np.float32)
    mean = np.linspace(50, 130, layer.units, dtype=np.float32)
    deviation = np.linspace(3, 60, layer.units, dtype=np.float32)
    axes = (1, -1, *(1 for _ in in_memory(shape)[1:]))
    report = run_layer_contract(
        device,
        layer,
        [],
        reference_forward=lambda inputs, parameters: (
            (samples.astype(np.float64) - parameters["mean"].reshape(axes)) / parameters["deviation"].reshape(axes)
        ),
        reference_backward=lambda inputs, parameters, delta: ([], {}),
        parameters={"mean": mean, "deviation": deviation},
        shared={"samples": samples},
        relative=1e-6,
        absolute=1e-5,
        arrangements=["one pitch"],
        tuning=tuning_for(device_class),
    )
    assert report.kernels == {"input/forward"}


def test_shapes() -> None:
    shapes = [layer.output_shape([]) for layer in LAYERS[:3]]
    assert shapes == [Shape(3, 5, 7), Shape(2, 11), Shape.flat(9)]


def test_statistics_are_kept_but_not_trained() -> None:
    specs = Input(3, 5, 7).parameters([])
    assert [(spec.name, spec.shape, spec.initializer, spec.trainable) for spec in specs] == [
        ("mean", (3,), "zeros", False),
        ("deviation", (3,), "ones", False),
    ]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"units": 0}, r"Input: units must be an int of at least 1\. Received units=0, height=None, width=None"),
        ({"units": 3, "height": 0, "width": 4}, "height must be an int of at least 1"),
        ({"units": 3, "height": 4, "width": 2.5}, r"width must be an int of at least 1\. .*width=2\.5"),
        ({"units": None}, "units must be an int"),
        ({"units": 3, "height": 4}, "an input with a height needs a width"),
    ],
)
def test_bad_sizes(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Input(**sizes)
