"""``blobnet compile``."""

from __future__ import annotations

import re

import pytest

from blobnet.device.programs import Programs
from blobnet.errors import BuildError

MATMUL = "O[n, m] = +(A[n, k] * B[k, m])"


def test_it_shows_what_becomes_of_a_contraction(run) -> None:
    found = run("compile", MATMUL, "--shapes", "A=8x16", "B=16x32", "--show")
    assert found.status == 0
    assert "range  O =   A   B" in found.out
    assert re.search(r"schedule   \w+ .*\n  predicted  .*\d", found.out)
    assert "__kernel" in found.out
    assert "GFLOPS" in found.out


#: What the seeds compute (docs/sources.md), smaller: a text, and the shapes of its inputs.
SEEDS = {
    "000, pre-activations stored": (
        """function (I[N, C, Y, X], W[C, F, K, L], B[F, H, V]) -> (R, P) {
          S[n, f, y, x : N, F, Y, X] = +(I[n, c, y+a-1, x+b-1] * W[c, f, a, b]);
          P = S + B;
          R = P > 0 ? P : P / 8;
        }""",
        ["I=2x16x12x12", "W=16x32x3x3", "B=32x1x1"],
    ),
    "000, a bias a position, stride 2": (
        """function (I[N, C, Y, X], W[C, F, K, L], B[F, 6, 6]) -> (R) {
          S[n, f, y, x : N, F, 6, 6] = +(I[n, c, 2*y+a-2, 2*x+b-2] * W[c, f, a, b]);
          R = S + B;
        }""",
        ["I=2x16x12x12", "W=16x32x5x5", "B=32x6x6"],
    ),
    "001": (
        """function (D[N, X, Y, CI], K[I, J, CO, CI]) -> (R) {
          O[n, x, y, co : N, X, Y, CO] = +(D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]);
          R = (O > 0 ? O : 0);
        }""",
        ["D=2x14x14x64", "K=3x3x64x64"],
    ),
    "002": ("O[n, o, x : 4, 64, 32] = +(I[n, i, x+k-2] * W[o, i, k])", ["I=4x64x32", "W=64x64x5"]),
    "003": ("O[n, o, y, x : 2, 64, 9, 9] = +(I[n, i, y+a-1, x+b-1] * W[o, i, a, b])", ["I=2x64x9x9", "W=64x64x3x3"]),
    "004": (
        """function (I[N, Y, X, C], W[F, C], B[F]) -> (R) {
          O[n, y, x, f] = +(I[n, y, x, c] * W[f, c]);
          P[n, y, x, f] = +(O[n, y, x, f] + B[f]);
          R = max(P, 0);
        }""",
        ["I=2x14x14x48", "W=64x48", "B=64"],
    ),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("name", SEEDS)
def test_the_examples_of_the_seeds(run, tmp_path, name: str, gradients: bool) -> None:
    """Schedules pack operands here, and split sums: there is a prediction for a statement, not for each launch."""
    text, shapes = SEEDS[name]
    (tmp_path / "seed.txt").write_text(text)
    found = run("compile", str(tmp_path / "seed.txt"), "--shapes", *shapes, *["--gradients"] * gradients)
    assert found.status == 0, found.err
    assert 1 <= found.out.count("  predicted  ") <= found.out.count("launch ")
    results = [f"d_{shape[0]}" for shape in shapes] if gradients else ["R" if "-> (R" in text else "O"]
    for result in results:
        assert re.search(rf"^launch \d+: .*\b{result}\b", found.out, re.MULTILINE)
    if name == "001":
        assert "pack" in found.out


def test_the_model_of_a_seed(run, tmp_path) -> None:
    """What the text prints for its example (docs/sources.md); no device is asked."""
    (tmp_path / "seed.txt").write_text(SEEDS["001"][0])
    arguments = [str(tmp_path / "seed.txt"), "--shapes", "D=32x224x224x64", "K=3x3x64x64"]
    found = run("compile", *arguments, "--model", "seed", "--show", "--device", "none").out
    for line in [
        "       i         3         0     14336     12288",
        "     off                   0    -14400         0",
        "Constraint: (0,0,1,0,0,1,0) <= 224",
        "tile [8, 32, 1, 3, 16, 8, 2]: to=236760072192 wg=12544 il=24 sm=20656 or=32768 mr=19456 mw=32768 op=256 "
        "tu=256, over memory",
        "tile [8, 32, 2, 1, 16, 2, 2]: to=236760072192 wg=50176 il=48 sm=5264 or=8192 mr=5120 mw=8192 op=256 "
        "tu=256, 18.5806 flops a byte; roof 0.929032, occupancy 1, threads 1: 0.929032",
        "     j_y         4        64       393",
        "threads: co: 8, n: 8, x: 2, y: 2",
    ]:
        assert line in found.splitlines()
    assert "tiles: [ci: 8, co: 32, i: 2, j: 3, n: 16, x: 2, y: 2]\n" in found
    shown = run("compile", *arguments, "--model", "seed", "--gradients").out
    assert shown.count("chosen of") == 3  # The sums of O, whose sign the ReLU's derivative asks for, d_D and d_K.
    assert "tile [" not in shown


def test_a_text_longer_than_names_of_files(run) -> None:
    text = f"function (A[N]) -> (R) {{ R = {' + '.join('A' * 90)}; }}"
    assert run("compile", text, "--shapes", "A=7").status == 0


def test_no_text(run) -> None:
    found = run("compile", "matmul.txt", "--shapes", "A=8x16")
    rule = "TEXT: it must be a contraction, such as 'O[n] = +(A[n, k])', or a file's path. Received text=matmul.txt."
    assert (found.status, found.err) == (1, f"error: {rule}\n")


def test_a_file_that_is_no_text(run, tmp_path) -> None:
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    found = run("compile", str(tmp_path / "model.h5"))
    rule = "the file must hold the text of a contraction. Received cause="
    assert found.status == 1
    assert found.err.startswith(f"error: {tmp_path / 'model.h5'}: {rule}")
    assert run("compile", "a\0b").status == 1


def test_schedules_and_gradients(run, tmp_path) -> None:
    (tmp_path / "matmul.txt").write_text(MATMUL)
    arguments = ["compile", str(tmp_path / "matmul.txt"), "--shapes", "A=8x16", "B=16x32"]
    found = run(*arguments, "--schedule", "tile n 1x1x2; unroll k")
    assert "schedule   tile n 1x1x2; unroll k" in found.out
    assert "launch 1: d_A" in run(*arguments, "--gradients", "A").out
    everything = run(*arguments, "--gradients").out
    assert "d_A" in everything
    assert "d_B" in everything


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--shapes", "A=8y16"], 2, "argument --shapes: it must be a name and its shape, such as I=8x64x28x28"),
        (["--shapes", "A=8x16", "B=16x32", "--sizes", "N"], 2, "--sizes: it must be a name and a whole number"),
        (["--shapes", "A=8x16"], 1, "the input 'B' is missing"),
        (["--shapes", "A=8x16", "B=16"], 1, "'B' has 1 axis"),
        (["--shapes", "A=8x16", "B=16x32", "--schedule", "tile q 1x1x1"], 1, "schedule: there is no index 'q'"),
    ],
)
def test_mistakes(run, arguments: list[str], status: int, message: str) -> None:
    found = run("compile", MATMUL, *arguments)
    assert found.status == status
    assert message in found.err


def test_the_prediction_is_that_of_what_was_built(run, monkeypatch) -> None:
    """A driver that refuses vectors gets one result a work-item."""
    arguments = ["compile", MATMUL, "--shapes", "A=8x16", "B=16x32"]
    kernel = Programs.kernel

    def refuse(self: Programs, source: str, entry: str, what: str) -> object:
        if "float8" in source:
            raise BuildError(what, "no vectors here")
        return kernel(self, source, entry, what)

    plain = run(*arguments, "--schedule", "").out
    monkeypatch.setattr(Programs, "kernel", refuse)
    found = run(*arguments, "--schedule", "tile m 1x1x8; vector m 8")
    assert "simpler ones take their place" in found.err
    shown, wanted = ([line for line in out.splitlines() if line.startswith("  ")] for out in (found.out, plain))
    assert shown == wanted
    assert "schedule   one result a work-item" in found.out
