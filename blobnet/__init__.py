"""blobnet: train and run convolutional networks through OpenCL, on padded blobs.

>>> import blobnet as bn
>>> from blobnet import layers
>>> model = bn.Sequential([layers.Input(1, 28, 28), layers.Flatten(), layers.Dense(10)])
"""

from __future__ import annotations

from blobnet.support import running

TYPE_CHECKING = False  # as in blobnet.support.interrupt, which comes next and must not wait
if TYPE_CHECKING:
    from typing import Any

    from blobnet import (
        augment,
        callbacks,
        contraction,
        datasets,
        errors,
        explain,
        layers,
        losses,
        metrics,
        models,
        onnx,
        optimizers,
        parallel,
        plots,
        schedules,
    )
    from blobnet.card import report
    from blobnet.checkup.doctor import doctor
    from blobnet.model import Model, Sequential, load
    from blobnet.onnx.from_torch import from_torch
    from blobnet.training.folds import cross_validate
    from blobnet.training.rate_finder import find_learning_rate
    from blobnet.version import __version__ as __version__

__all__ = [
    "Model",
    "Sequential",
    "augment",
    "callbacks",
    "contraction",
    "cross_validate",
    "datasets",
    "doctor",
    "errors",
    "explain",
    "find_learning_rate",
    "from_torch",
    "layers",
    "load",
    "losses",
    "metrics",
    "models",
    "onnx",
    "optimizers",
    "parallel",
    "plots",
    "report",
    "schedules",
]
#: Names that are not modules, and where they stand.
_WITHIN = {
    "__version__": "version",
    "Model": "model",
    "Sequential": "model",
    "load": "model",
    "cross_validate": "training.folds",
    "doctor": "checkup.doctor",
    "find_learning_rate": "training.rate_finder",
    "from_torch": "onnx.from_torch",
    "report": "card",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that ``blobnet --help`` waits for neither NumPy nor OpenCL."""
    if name not in (*__all__, *_WITHIN):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"blobnet.{_WITHIN.get(name, name)}")
    value = getattr(module, name) if name in _WITHIN else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _run_program(*arguments: Any) -> dict[str, Any]:
    """Runs a program of contractions; OpenCL is imported when the first one runs."""
    from blobnet.execution.contractions import run

    return run(*arguments)


running.run_program = _run_program


def _join_ending_rank() -> None:
    """Has a process that MPICH's mpiexec started tell the others of its end, who would wait for it for ever."""
    import os
    import stat

    try:
        # What mpiexec speaks through: processes that a rank starts know of it, and do not have it.
        if not stat.S_ISSOCK(os.fstat(int(os.environ["PMI_FD"])).st_mode):
            return
    except (KeyError, ValueError, OSError):
        return
    import concurrent.futures.thread  # noqa: F401 - at the end, when all else is imported, it could not be

    from blobnet.support.at_exit import at_exit

    def join() -> None:
        from blobnet.parallel.world import join_ending

        join_ending()

    at_exit(join)


_join_ending_rank()
