"""The page that Live serves while a training goes on: on the loopback alone, and for no longer."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from blobnet.callbacks import Callback, Live
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.training.trainer import Progress
from tests.tiny import digits, tiny_model


def ask(address: str, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, str]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


class Reader(Callback):
    """Asks for the page at each event, once behind Live."""

    def __init__(self, live: Live) -> None:
        self.live, self.pages = live, dict[str, str]()
        self.address = ""

    def _read(self, event: str) -> None:
        self.address = self.live.address or ""
        status, self.pages[event] = ask(self.address)
        assert status == 200

    def begin(self, progress: Progress) -> None:
        self._read("begin")

    def step_end(self, progress: Progress) -> None:
        self._read(f"step {progress.trainer.step.number}")

    def epoch_end(self, progress: Progress) -> None:
        self._read(f"epoch {progress.trainer.epoch}")


def train(device: Device, callbacks: list[Callback], **settings: Any) -> dict[str, list[float]]:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 8, "verbose": False, "validation": 0.25, "device": device}
    return tiny_model().fit(*digits(16), callbacks=callbacks, **{**given, **settings})


def rows(text: str) -> list[list[str]]:
    (table,) = re.findall(r'<section id="training">.*?</section>', text, re.DOTALL)
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", table)]


def test_the_page_follows_the_training(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(port=0)
    reader = Reader(live)
    history = train(device, [live, reader])
    assert f"live    {reader.address}\n" in capsys.readouterr().err
    assert list(reader.pages)[:3] == ["begin", "step 1", "step 2"]
    first = reader.pages["begin"]
    assert 'id="training"' not in first
    assert "0 of 3 epochs" not in first
    assert "<dd>0 of 3 done</dd>" in first
    assert all(f'id="{name}"' in first for name in ("about", "layers", "plan"))
    assert "<dd>12 of this epoch</dd>" in reader.pages["step 2"]
    for epoch in (1, 2, 3):
        header, *values = rows(reader.pages[f"epoch {epoch}"])
        assert header == ["epoch", *history]
        assert len(values) == epoch
        found = np.array(values, float)
        np.testing.assert_allclose(found[:, 1:].T, [own[:epoch] for own in history.values()], rtol=1e-5)
    assert 'http-equiv="refresh"' in first
    assert "<script" not in first
    # It is gone, and nothing is left of it.
    assert live.address is None
    assert not [thread for thread in threading.enumerate() if thread.name == "blobnet live"]
    with pytest.raises(ConnectionRefusedError):
        ask(reader.address)


class Asking(Callback):
    def __init__(self, live: Live) -> None:
        self.live = live
        self.found: list[int] = []

    def begin(self, progress: Progress) -> None:
        address = self.live.address or ""
        port = urlsplit(address).port
        assert urlsplit(address).hostname == "127.0.0.1"
        for path, host in (("/", f"localhost:{port}"), ("/", f"evil.example:{port}"), ("/../etc/passwd", None)):
            self.found.append(ask(address, path, host)[0])
        self.found.append(ask(address, method="POST")[0])
        # Not at the computer's other addresses.
        others = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        for other in others - {"127.0.0.1"}:
            with pytest.raises(OSError), socket.create_connection((other, port or 0), timeout=5):  # noqa: PT011
                pass
        raise RuntimeError("enough")


def test_it_answers_this_computer_alone_and_closes_behind_an_error(device: Device) -> None:
    live = Live(port=0)
    asking = Asking(live)
    with pytest.raises(RuntimeError, match="enough"):
        train(device, [live, asking])
    assert asking.found == [200, 403, 404, 501]
    assert live.address is None
    train(device, [live], epochs=1)  # Once more.


def test_ports_that_cannot_be_had(device: Device) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        said = (
            rf"Live: the port must be free, .*port={number}, cause=Address already in use. Hint: another number, or 0"
        )
        with pytest.raises(OptionError, match=said):
            train(device, [Live(number)])
    for port in (-1, 65536, "8787", 1.5, True):
        with pytest.raises(OptionError, match="Live: the port must be a whole number from 0 to 65535"):
            Live(port)  # type: ignore[arg-type]
