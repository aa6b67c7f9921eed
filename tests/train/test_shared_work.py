"""What several ranks compute together: each its part, and all have the whole, with the bits of one rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import metrics
from blobnet.device.device import Device
from blobnet.errors import DataError
from blobnet.optimizers import SGD
from blobnet.parallel.world import World
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import digits, tiny_model

X, Y = digits(45)

#: What a rank has computed.
RANK = """
import json
from pathlib import Path
from blobnet.parallel.world import World
from tests.train.test_shared_work import everything
Path(f"{World.current().rank}.json").write_text(json.dumps(everything()))
"""


class Stream:
    """Batches of several sizes, some larger than those of a step."""

    def __iter__(self) -> Iterator[Any]:
        for first, end in ((0, 7), (7, 23), (23, 42), (42, 45)):
            yield X[first:end], Y[first:end]


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def everything() -> dict[str, Any]:
    """Every way to share work, as plain data."""
    model = tiny_model()
    found: dict[str, Any] = {}
    settings: dict[str, Any] = {"optimizer": SGD(0.05), "batch_size": 16, "shards": 4, "verbose": False, "seed": 3}
    found["history"] = model.fit(
        Stream(), epochs=2, augment="crop=1", validation=(X, Y), metrics=[metrics.f1], **settings
    )
    found["weights"] = {name: digest(values) for name, values in model.weights.items()}
    found["predict"] = digest(model.predict(X, batch_size=8))
    found["one"] = digest(model.predict(X[:1]))
    found["batches"] = [digest(values) for values in model.predict_batches(X, batch_size=4)]
    found["stream"] = digest(model.predict((x for x, _ in Stream()), batch_size=8))
    found["evaluate"] = model.evaluate(X, Y, batch_size=8, metrics=["f1", "auc"])
    found["of stream"] = model.evaluate(Stream(), batch_size=8)
    found["report"] = model.report(X, Y, batch_size=8).matrix.tolist()
    # An error of one rank is one of all, and the next call goes well.
    spoiled = X.copy()
    spoiled[20] = np.nan

    class Source:
        shape, dtype = spoiled.shape, spoiled.dtype

        def __len__(self) -> int:
            return len(spoiled)

        def __getitem__(self, rows: Any) -> Any:
            return spoiled[rows]

    try:
        model.predict(Source(), batch_size=8)
    except DataError as error:
        found["error"] = str(error).removeprefix("on rank 0: ")
    if World.current().is_first:
        with World.alone():
            assert digest(model.predict(X, batch_size=8)) == found["predict"]
    return found


@needs_mpi
def test_ranks_share_measuring_and_streams_with_the_bits_of_one(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBNET_DEVICE", device.info.address)
    alone = json.loads(json.dumps(everything()))
    assert alone["error"].startswith("x: x must hold finite float32 values. Received index=(20, 0, 0, 0)")
    monkeypatch.chdir(tmp_path)
    mpiexec(2, device, "-c", RANK, check=True)
    for rank in range(2):
        assert json.loads(Path(f"{rank}.json").read_text()) == alone


def test_batches_are_added_up_in_their_order(device: Device) -> None:
    x, y = digits(150)  # More batches of one sample than lie on the device at once.
    model = tiny_model()
    found = model.evaluate(x, y, batch_size=1, device=device)
    outputs = model.predict(x, device=device).astype(np.float64)
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert found["accuracy"] == (outputs.argmax(axis=1) == y).mean()
