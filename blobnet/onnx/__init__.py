"""Networks in ONNX files (docs/onnx.md).

``load`` reads one as a model, ``save`` writes one, ``Session`` runs one on arrays of any sizes, with what of it stays
on the host; ``Backend`` is ONNX's own interface.

The package ``onnx`` is imported when one of them is first used: ``pip install "blobnet[onnx]"`` adds it to the blobnet
is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blobnet.onnx.backend import Backend
    from blobnet.onnx.importer import load
    from blobnet.onnx.save import save
    from blobnet.onnx.session import Session

__all__ = ["Backend", "Session", "load", "save"]
_MODULES = {"Backend": "backend", "Session": "session", "load": "importer", "save": "save"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Backend":  # A class of the package is its base.
        importlib.import_module("blobnet.onnx.reading").package()
    value = getattr(importlib.import_module(f"blobnet.onnx.{_MODULES[name]}"), name)
    # NOTE: in the place of a submodule of the same name, which the import has put here.
    globals()[name] = value
    return value
