"""Pipes and devices where a file is expected: all readers say so at once, seen by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="there are no pipes in folders here")
pytest.importorskip("PIL")
pytest.importorskip("onnx")
pytest.importorskip("safetensors")

ROOT = Path(__file__).parents[2]

#: Gives whatever reads a file one that is none, and prints what each says.
READERS = """
import os, sys, warnings
from pathlib import Path
import numpy as np
import blobnet as bn
from blobnet import layers
from blobnet.support import user_cache as cache
from blobnet.files import atomic as files
from blobnet.device import tuning
from blobnet.contraction import schedule_cache
from blobnet.datasets.pictures import image_size, read_image
from blobnet.datasets.user_data import read_samples
from blobnet.errors import BlobnetError

make, folder = sys.argv[1], Path(sys.argv[2])
model = bn.Sequential([layers.Input(2), layers.Dense(2)])

def place(name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if make == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path

def lock():
    target = place(".m.h5.lock").with_name("m.h5")
    with files.held(target):
        model.save(target)
    return bn.load(target).parameter_count

def program():
    path = place("blobnet/programs/entry")
    found = cache.read_entry(path)
    cache.write_entry(path, b"anew")
    return found, cache.read_entry(path)

def tunings():
    identity = {"device": "Some CPU", "platform": "", "driver": "1", "processor": ""}
    place(tuning.Tunings(identity).path.relative_to(folder))
    return tuning.Tunings(identity).broken

def schedules():
    key = schedule_cache.key_of("a table", "a device")
    place((schedule_cache._folder() / key).relative_to(folder))
    return schedule_cache.cached_schedule("a table", "a device", schedule_cache.Schedule) == schedule_cache.Schedule()

def arrays():
    (folder / "data").mkdir()
    np.save(folder / "data" / "x.npy", np.zeros((2, 1, 4, 4)))
    return bn.datasets.load(place("data/y.npy").parent)

def pictures():
    from PIL import Image
    for name in "ab":
        (folder / "pictures" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / "pictures" / name / "1.png")
    place("pictures/b/2.png")
    return bn.datasets.load(folder / "pictures").train.x

READ = {
    "model": lambda: bn.load(place("a.h5")),
    "onnx": lambda: bn.onnx.load(place("a.onnx")),
    "keras": lambda: model.load_keras_weights(place("a.weights.h5")),
    "safetensors": lambda: model.load_safetensors(place("a.safetensors")),
    "npz": lambda: bn.datasets.load(place("data.npz")),
    "hdf5": lambda: bn.datasets.load(place("data.h5")),
    "npy": arrays,
    "samples": lambda: read_samples(place("samples.npy")),
    "table": lambda: bn.datasets.load(place("data.csv")),
    "picture": lambda: read_image(place("1.png"), (1, 4, 4)),
    "picture's array": lambda: read_image(place("1.npy"), (1, 4, 4)),
    "size": lambda: image_size(place("2.npy")),
    "pictures": pictures,
    "cached program": program,
    "cached tunings": tunings,
    "cached schedules": schedules,
    "lock": lock,
}
warnings.showwarning = lambda message, *more, **settings: print(message, end=" ")
for name, read in READ.items():
    print(name, end=": ", flush=True)
    try:
        print(read(), flush=True)
    except BlobnetError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("make", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: str) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", READERS, make, str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    others = ("cached program", "cached schedules", "lock")
    assert {name: said.pop(name) for name in others} == dict(zip(others, ("(None, b'anew')", "True", "6"), strict=True))
    assert len(said) == 14
    assert {name: line for name, line in said.items() if f"it is a {make}, and no file" not in line} == {}
