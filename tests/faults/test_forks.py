"""A fork while another thread computes: the child says what is wrong, and never hangs; the parent goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("fcntl", reason="there are no forks here")

#: A thread predicts for ever; meanwhile children try what would wait for locks and threads that are not there.
FORKS = """
import os, signal, sys, threading
import numpy as np
import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import DeviceError
model = bn.Sequential([layers.Input(8), layers.Dense(4)], seed=1)
x = np.ones((300, 8), np.float32)
expected = model.predict(x).tobytes()
device = model.device_for(None)
buffer = device.memory.allocate(4)
references = sys.getrefcount(buffer)
done = False
def work():
    while not done:
        model.predict(x)
thread = threading.Thread(target=work)
thread.start()
attempts = [
    lambda: model.predict(x), lambda: model.fit(x, np.zeros(300, np.int32), verbose=False), lambda: Device(),
    lambda: bn.Sequential([layers.Input(8), layers.Dense(4)]).predict(x), lambda: device.memory.read(buffer, 1),
    lambda: device.programs.build("__kernel void f() {}", "a kernel"), lambda: bn.load(sys.argv[1]) and None,
    lambda: sys.getrefcount(buffer) > references or os._exit(10),  # Nothing frees it here.
]
for attempt in attempts * 2:
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            attempt()
        except DeviceError as error:
            os._exit(7 if str(error).startswith("OpenCL: a process that was forked from one that uses") else 8)
        os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ", flush=True)
for _ in range(12):  # They end as Python ends, with all that is cleaned up then.
    child = os.fork()
    if not child:
        signal.alarm(40)
        print("ends ", end="")
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ", flush=True)
done = True
thread.join()
assert model.predict(x).tobytes() == expected
child = os.fork()
if not child:  # It ends as Python ends, with all that is cleaned up then.
    signal.alarm(20)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_children_that_were_forked_refuse_and_never_hang(tmp_path) -> None:
    import blobnet as bn

    path = tmp_path / "model.h5"
    bn.Sequential([bn.layers.Input(2), bn.layers.Dense(2)]).save(path)
    command = [sys.executable, "-c", FORKS, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    # What needs no device works in the child: reading a file.
    assert result.stdout.split() == [*["7"] * 6, "9", "9"] * 2 + ["ends", "3"] * 12 + ["3"]
