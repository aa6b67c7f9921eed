"""The callback Live, and the parts of its page that are those of a report too."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.metrics.naming import panels
from blobnet.network.summary import summarize
from blobnet.planning import Plan
from blobnet.planning.report import report
from blobnet.support import page
from blobnet.support.checks import is_int
from blobnet.version import __version__

if TYPE_CHECKING:
    from http.server import HTTPServer

    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import Callback

_HOST, _LAST_PORT = "127.0.0.1", 65535
#: Seconds after which a browser asks again, and after which a connection without a question is closed.
_REFRESH, _PATIENCE = 2, 10


class Live(Callback):
    """Serves a page with the curves of the training while it goes on, for a browser on this computer.

    The page is that of ``blobnet report``, as far as it goes: the curves with all numbers, device and versions, layers
    and memory plan. It is at http://127.0.0.1:8787/ (which is printed), loads itself again every two seconds, and is
    gone when the training ends.

    Args:
        port: where; 0 is any that is free.

    Raises:
        OptionError: no port; or (before the first epoch) it cannot be had, since something else is there.
    """

    only_logs = True
    option = ("port", "--live PORT  serve the curves at http://127.0.0.1:PORT/ while it trains (default: 8787)")

    def __init__(self, port: int = 8787) -> None:
        if not is_int(port, 0) or port > _LAST_PORT:
            raise OptionError("Live", f"the port must be a whole number from 0 to {_LAST_PORT}", port=port)
        self.port = port
        #: Where the page is, while it is there.
        self.address: str | None = None
        self._server: HTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._fixed: list[str] = []
        #: The history, and how far the training is. Always another object, as other threads read it.
        self._state: tuple[dict[str, list[float]], dict[str, object]] = ({}, {})

    def begin(self, progress: Progress) -> None:
        step = progress.trainer.step
        layers = page.section("layers", "Layers", summarize(progress.trainer.graph, step.settings.freeze)._repr_html_())
        about = page.section("about", "About", page.facts(about_device(step.device)))
        self._fixed = [about, layers, plan_section(step.plan)]
        self._take(progress)
        self._start()
        print(f"live    {self.address}", file=sys.stderr)

    def step_end(self, progress: Progress) -> None:
        self._take(progress)

    def epoch_end(self, progress: Progress) -> None:
        self._take(progress)

    def release(self) -> None:
        server, self._server, self.address = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join()

    def html(self) -> str:
        """Return the page as it is now."""
        history, state = self._state
        now = page.section("now", "Now", page.facts(state))
        return page.document("a training", [now, training_section(history), *self._fixed], _REFRESH)

    def _take(self, progress: Progress) -> None:
        trainer = progress.trainer
        state: dict[str, object] = {
            "epochs": f"{trainer.epoch} of {progress.epochs} done",
            "steps": f"{trainer.step.number:,}",
            "samples": f"{trainer.samples:,} of this epoch",
            "learning rate": f"{trainer.learning_rate:.4g}",
        }
        self._state = ({name: list(values) for name, values in progress.history.items()}, state)

    def _start(self) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        live = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE

            def do_GET(self) -> None:
                # NOTE: pages of others that call this computer by a name of theirs must not read it.
                host = (self.headers.get("Host") or "").lower().partition(":")[0]
                status = 403 if host not in (_HOST, "localhost") else 200 if self.path == "/" else 404
                text = live.html() if status == 200 else f"{status}"
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Says nothing: the terminal is the training's."""

        class Server(ThreadingHTTPServer):
            allow_reuse_address = os.name != "nt"  # There two trainings could have one port.

            def handle_error(self, *_: Any) -> None:
                """Says nothing: a reader that goes away is no fault of the training's."""

        try:
            self._server = Server((_HOST, self.port), Handler)
        except OSError as error:
            rule, hint = "the port must be free, and one that this user may have", "another number, or 0 for any."
            raise OptionError("Live", rule, port=self.port, cause=error.strerror or error, hint=hint) from error
        self.address = f"http://{_HOST}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.1], name="blobnet live", daemon=True)
        self._thread.start()


def training_section(history: Mapping[str, Sequence[float]]) -> str:
    """The curves of a history, with all numbers."""
    charts = [page.curves(name.replace("_", " "), parts) for name, parts in panels(history).items()]
    epochs = max(map(len, history.values()), default=0)
    rows = [[epoch + 1, *(f"{own[epoch]:.6g}" for own in history.values())] for epoch in range(epochs)]
    numbers = page.folded("all numbers", page.table(["epoch", *history], rows)) if rows else ""
    return page.section("training", "Training", page.charts(*charts), numbers)


def plan_section(plan: Plan) -> str:
    """The memory plan."""
    what = "training" if plan.request.training else "prediction"
    said = page.note(f"{what}, batches of {plan.batch_size}")
    return page.section("plan", "Memory", said, report(plan)._repr_html_())


def about_device(device: Device) -> dict[str, object]:
    """Return what is run on, and with which versions."""
    info = device.info
    versions = {"blobnet": __version__, "Python": platform.python_version(), "NumPy": np.__version__}
    versions |= {name: importlib.metadata.version(name) for name in ("pyopencl", "h5py")}
    return {
        "device": f"{info.name} ({info.kind}, {info.compute_units} compute units)",
        "driver": f"{info.platform}, {info.driver}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }
