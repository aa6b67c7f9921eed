"""What importing blobnet does besides: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Notes what would change files or the environment, with the module that does it: one of blobnet's, or of a package
#: that it imports, which may do as it likes.
WATCH = """
import importlib, os, pkgutil, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.putenv", "os.unsetenv", "tempfile.mkstemp", "tempfile.mkdtemp", "subprocess.Popen", "os.posix_spawn"}
found = []

def note(event, arguments):
    if event in CHANGES or event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
            frame = frame.f_back
        found.append((frame.f_globals["__name__"].partition(".")[0] if frame else "python", event, arguments))

sys.addaudithook(note)
before = dict(os.environ)
"""
BLOBNET = """
import blobnet
assert not found, found
assert dict(os.environ) == before
"""
ALL = """
import blobnet
for name in blobnet.__all__:
    getattr(blobnet, name)
for module in pkgutil.walk_packages(blobnet.__path__, "blobnet."):
    if module.name != "blobnet.__main__":
        importlib.import_module(module.name)
assert "blobnet.device.device" in sys.modules
assert not [item for item in found if item[0] in ("blobnet", "__main__")], found
"""
#: The same hook sees what blobnet does when it is asked for devices: the folder that it shows the loader.
DEVICES = """
from blobnet.device import discovery
discovery._intel_runtime = lambda: discovery.Path("nothing.so")
discovery.devices()
assert {"tempfile.mkdtemp", "os.putenv", "os.unsetenv"} <= {event for who, event, _ in found if who == "blobnet"}, found
assert "OCL_ICD_VENDORS" not in os.environ
"""


def run(code: str, home: Path) -> None:
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    environment.pop("OCL_ICD_VENDORS", None)
    # Python's own compiled files are not the point.
    command = [sys.executable, "-B", "-c", WATCH + code]
    result = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_blobnet_writes_no_files_and_changes_no_environment(tmp_path: Path) -> None:
    run(BLOBNET, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_all_of_it_does_neither(tmp_path: Path) -> None:
    run(ALL, tmp_path)
    assert not (tmp_path / "cache" / "blobnet").exists()


def test_looking_for_devices_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    run(DEVICES, tmp_path)
    assert not (tmp_path / "cache" / "blobnet").exists()
