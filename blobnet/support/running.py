"""How a program of contractions runs on a device: the rooms of programs are below those of devices, and do not know."""

from __future__ import annotations

TYPE_CHECKING = False  # as in blobnet.support.interrupt
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: (program, arrays by name, device) -> arrays by name; blobnet/__init__.py sets it.
run_program: Callable[..., dict[str, Any]]
