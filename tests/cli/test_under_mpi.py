"""Commands under mpiexec: the first rank says and writes what all have computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import blobnet as bn
from blobnet.device.device import Device
from blobnet.device.discovery import choose
from tests.ranks import mpiexec, needs_mpi

#: Each rank finds other memory, as with PoCL, which tells what is free.
FREE_MEMORY = """
import blobnet.command_line.devices as d
from mpi4py import MPI
d.format_bytes = lambda size: f"{MPI.COMM_WORLD.rank}.0 B free"
"""
#: Commands that are run one behind the other.
COMMANDS = """
import sys
from blobnet.command_line.main import main
for line in sys.argv[1:]:
    assert main(line.split()) == int("bad.npy" in line), line
"""


@needs_mpi
def test_commands_of_two_ranks(run, trained, monkeypatch) -> None:
    data = bn.datasets.load("digits").test
    names = [f"{number}.npy" for number in range(5)]
    for name, sample in zip(names, data.x, strict=False):
        np.save(name, sample)
    Path("bad.npy").write_bytes(b"no array")
    np.savez("samples.npz", x=data.x[:300])
    monkeypatch.setattr("blobnet.command_line.predict._CHUNK", 2)
    lines = [
        f"evaluate {trained} --dataset digits --batch-size 50 --report --matrix matrix.png",
        f"predict {trained} {' '.join(names[:2])} bad.npy {' '.join(names[2:])} samples.npz --csv OUT",
    ]
    alone = [run(*line.replace("OUT", "one.csv").split()) for line in lines]
    Path("matrix.png").unlink()
    with Path("chunk.py").open("w") as file:
        file.write("import blobnet.command_line.predict as p\np._CHUNK = 2\n" + FREE_MEMORY + COMMANDS)
    done = mpiexec(2, Device(choose()), "chunk.py", *[line.replace("OUT", "two.csv") for line in lines], "devices")
    assert done.returncode == 0, done.stderr
    said, _, listed = done.stdout.partition("ranks 0, 1 on ")
    assert said == "".join(result.out for result in alone).replace("one.csv", "two.csv")
    assert done.stderr == "".join(result.err for result in alone)
    assert Path("matrix.png").exists()
    assert Path("two.csv").read_bytes() == Path("one.csv").read_bytes()
    assert len(Path("two.csv").read_text().splitlines()) == 1 + 5 + 300
    # The devices of both are those of one host, and both take the same.
    assert listed.count("  address ") == 1
    assert listed.count("ranks 0, 1\n") == 1
    assert "0.0 B free" in listed
    assert "1.0 B free" not in listed
