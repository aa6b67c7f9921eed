"""Layers that are contractions, against PyTorch's own: transposed and 3-D convolutions, and attention.

    python tests/bench/statements.py [NAME ...] [--device NAME] [--batch-size 32] [--repeats 5] [--launches]

Bursts of forward and backward passes in turns, in sets of buffers that no cache holds, as in `blobnet bench layer`.
Milliseconds are medians of the wall time, the ratio is the median of PyTorch's over blobnet's, burst by burst: above 1,
blobnet is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch_twin
from single_layers import CaseBench

from blobnet import layers
from blobnet.bench.timing import alternate, burst_length, values_like
from blobnet.device.device import Device, choose
from blobnet.examination.layer_cases import BACKWARD, Case
from blobnet.implementations.base import FORWARD
from blobnet.memory.blob import Shape

#: Layers and inputs; transposed convolutions as decoders have them, a video network's, and vit_tiny's attention.
CASES = {
    "transposed": Case(layers.ConvTranspose2D(64, 4, 2, 1), Shape(128, 56, 56)),
    "transposed_k2": Case(layers.ConvTranspose2D(64, 2, 2), Shape(128, 56, 56)),
    "transposed_1d": Case(layers.ConvTranspose1D(64, 4, 2, 1), Shape(128, 3136)),
    "conv3d": Case(layers.Conv3D(64, 3, padding=1), Shape(32, 16, 56, 56)),
    "conv3d_strided": Case(layers.Conv3D(64, 3, 2, padding=1), Shape(32, 16, 56, 56)),
    "attention": Case(layers.MultiHeadAttention(3), Shape(192, 197)),
}


def twin(case: Case, batch_size: int, sets: int, where: str) -> Callable[[str, int], float]:
    """Seconds of one of some repeats of a phase in PyTorch."""
    torch = torch_twin.load()
    layer: Any = case.layer
    if layer.kind == "MultiHeadAttention":
        made = torch_twin.CaseTwin(case, batch_size, sets, where)
        return made.burst
    rank, transposed = case.input.rank, layer.kind.startswith("ConvTranspose")
    function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")

    def array(*shape: int) -> Any:
        count = 1
        for size in shape:
            count *= size
        return torch.tensor(values_like(count).reshape(shape), device=where)

    weight = array(*layer.parameters([case.input])[0].shape)
    bias = array(layer.filters)
    geometry = layer.stride, layer.padding
    each = lambda value: [value] * rank if isinstance(value, int) else list(value)  # noqa: E731
    rest = (each(layer.stride), each(layer.padding), [1] * rank, transposed, [0] * rank, 1, [True, True, True])
    own = [(array(batch_size, *case.input.dimensions), array(batch_size, *case.output.dimensions)) for _ in range(sets)]
    phases: dict[str, Callable[[Any, Any], object]] = {
        FORWARD: lambda x, delta: function(x, weight, bias, *geometry),
        BACKWARD: lambda x, delta: torch.ops.aten.convolution_backward(delta, x, weight, [layer.filters], *rest),
    }

    def burst(direction: str, length: int) -> float:
        with torch.no_grad():
            phases[direction](*own[-1])
            torch_twin.finish(where)
            start = time.perf_counter()
            for index in range(length):
                phases[direction](*own[index % sets])
            torch_twin.finish(where)
        return (time.perf_counter() - start) / length

    return burst


def main() -> None:
    """Prints a line for each phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*CASES], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32"])
    parser.add_argument("--launches", action="store_true", help="list the launches of each phase")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    options = parser.parse_args()
    device = Device(choose(options.device)).at(options.precision)
    print(f"{device.info}; batch {options.batch_size}, {options.precision}", flush=True)
    where = None
    if not options.no_torch:
        torch_twin.set_precision(options.precision)
        where = torch_twin.device_for(device.info)
        print(torch_twin.description(where))
    for name in options.names:
        case = CASES[name]
        bench = CaseBench(device, case, options.batch_size)
        rival = twin(case, options.batch_size, bench.sets, where) if where else None
        for direction in bench.calls:
            length = burst_length(bench.burst(direction, 1), device)
            theirs = partial(rival, direction, length) if rival else None
            ours, others = alternate(partial(bench.burst, direction, length), theirs, options.repeats)
            text = f"{name:16}{direction:9} {statistics.median(ours) * 1e3:9.3f} ms"
            if others:
                ratio = statistics.median(b / a for a, b in zip(ours, others, strict=True))
                text += f", PyTorch {statistics.median(others) * 1e3:9.3f} ms, {ratio:5.2f} times as fast"
            print(text, flush=True)
            if options.launches:
                times = bench.launches(direction, options.repeats)
                for call, seconds in zip(bench.calls[direction], times, strict=True):
                    print(f"    {seconds * 1e3:9.3f} ms  {call.label}  {call.kernel}  {call.way or ''}")


if __name__ == "__main__":
    main()
