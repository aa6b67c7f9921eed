"""Processes that MPI starts together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blobnet.device.device import Device
from blobnet.device.discovery import choose

MPIEXEC = Path(sys.executable).with_name("mpiexec")

#: As on hosts of their own: MPICH shares no memory between ranks, and sends all through TCP (BLOBNET_TEST_MPI=tcp).
TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp"} if os.environ.get("BLOBNET_TEST_MPI") == "tcp" else {}

needs_mpi = pytest.mark.skipif(not MPIEXEC.exists(), reason="needs mpi4py and mpich")


def mpiexec(
    count: int, device: Device, *arguments: object, check: bool = False, apart: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments as so many ranks, all of them on one device, or ``apart`` on those like it."""
    if choose(device.info.address).kind != device.info.kind:
        pytest.skip("simulated devices are of this process alone: ranks would find the one that lends itself")
    name = device.info.name if apart else device.info.address
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": places, "BLOBNET_DEVICE": name}
    command = [MPIEXEC, "-n", str(count), sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=variables | TCP, capture_output=True, text=True, timeout=120, check=check)
