"""NumPy's numbers are as good as Python's wherever a count or a rate is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import callbacks, layers, losses, optimizers, schedules
from blobnet.device.device import Device
from blobnet.errors import OptionError


def model(i: Any, f: Any) -> bn.Model:
    return bn.Sequential(
        [
            layers.Input(units=i(3), height=i(9), width=i(8)),
            layers.Conv2D(i(4), i(3), stride=(i(1), i(2)), padding=i(1), dilation=i(1), groups=i(1)),
            layers.BatchNorm(momentum=f(0.25)),
            layers.MaxPool2D(i(2), stride=i(2)),
            layers.Conv2D(i(4), [i(3), i(1)], padding=((i(1), i(1)), (i(0), i(0)))),
            layers.Dropout(f(0.5)),
            layers.Flatten(),
            layers.Dense(i(5)),
        ],
        seed=i(4),
    )


@pytest.mark.parametrize(("whole", "real"), [(np.int64, np.float64), (np.uint8, np.float32), (np.array, np.float16)])
def test_numpy_numbers_everywhere(device: Device, tmp_path: Path, whole: Any, real: Any) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((13, 3, 9, 8), dtype=np.float32), random.integers(0, 5, 13)
    results = []
    for i, f in ((int, float), (whole, real)):
        made = model(i, f)
        json.dumps(made.graph.description())
        assert made.graph == model(int, float).graph
        assert all(hash(vertex.layer) for vertex in made.graph.vertices)
        history = made.fit(
            x,
            y,
            epochs=i(2),
            batch_size=i(5),
            seed=i(3),
            optimizer=optimizers.SGD(schedules.Step(f(0.5), i(1), f(0.5))),
            loss=losses.CrossEntropy(0.125),
            callbacks=[
                callbacks.Checkpoint(tmp_path / "a.h5", every=i(2)),
                callbacks.EarlyStopping("loss", patience=i(2)),
            ],
            device=device,
            verbose=False,
        )
        made.save(tmp_path / "b.h5")
        np.testing.assert_array_equal(
            bn.load(tmp_path / "b.h5").predict(x, device=device), made.predict(x, device=device)
        )
        results.append(
            (
                history,
                made.evaluate(x, y, batch_size=i(4), device=device),
                made.gradients(x, y, seed=i(1), device=device),
            )
        )
        assert "for a batch of 6" in str(made.plan(i(6)))
    assert results[0][:2] == results[1][:2]
    for name, values in results[0][2].items():
        np.testing.assert_array_equal(values, results[1][2][name], name)


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, np.float32(2), "3", None, np.array([1, 2]), np.int8(0)])
def test_what_is_no_count(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^Dense: units must be an int of at least 1\. Received units="):
        layers.Dense(value)
    with pytest.raises(OptionError, match=r"^Conv2D: kernel_size must be an int or a pair"):
        layers.Conv2D(1, value if not isinstance(value, np.ndarray) else np.array([1, 0]))
    if not isinstance(value, np.ndarray):
        with pytest.raises(OptionError, match=r"^plan: batch_size must be an int of at least 1\. Received batch_size="):
            model(int, float).plan(value)
