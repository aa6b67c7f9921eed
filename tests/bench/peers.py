"""Steps of training and inference against torchvision's own networks, in the way of running them that is fastest there.

    python tests/bench/peers.py NETWORK... [--batch-size 64] [--size 224] [--precision tf32] [--device NVIDIA]

blobnet's network takes turns with torchvision's of the same name, with Adam in both and each batch copied from the
host. torchvision's runs eagerly, with channels last, and compiled (`torch.compile`) with channels last. A ratio is
PyTorch's time over blobnet's; the least one counts. A way of running that fails is named and left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch_twin
import torchvision

from blobnet import models
from blobnet.bench.network import INFERENCE, LEARNING_RATE, TRAINING, NetworkBench, burst
from blobnet.device.device import Device

#: Arguments of networks that would have further outputs in training.
_PLAIN = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
}


class ChannelsLast(torch.nn.Module):
    """A network whose parameters and samples have their channels last in memory."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of samples in the usual order."""
        return self.network(x.contiguous(memory_format=torch.channels_last))


def ways(make: Callable[[], torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """The ways of running a network, each with a network of its own."""
    yield "eager", make()
    yield "channels last", ChannelsLast(make())
    yield "compiled, channels last", torch.compile(ChannelsLast(make()))


def compare(
    bench: NetworkBench, kind: str, make: Callable[[], torch.nn.Module], where: str, repeats: int
) -> Iterator[str]:
    """A line for each way of running, and one for the fastest."""
    ratios: dict[str, float] = {}
    for way, network in ways(make):
        try:
            if kind == TRAINING:
                step = torch_twin.training_step(network, where, bench.x, bench.y, LEARNING_RATE)
            else:
                step = torch_twin.inference_step(network, where, bench.x)
            rival = partial(burst, step, partial(torch_twin.finish, where))
            rival(3)
        except Exception as error:  # A compiler that is not there, say.
            yield f"  {kind}, {way}: left out, {str(error).strip().splitlines()[0]}"
            continue
        timing = bench.measure(kind, repeats, rival)
        assert timing.torch is not None
        assert timing.ratio is not None
        ratios[way] = timing.ratio
        both = f"{1e3 * timing.seconds:.2f} ms, PyTorch {1e3 * timing.torch:.2f} ms"
        yield f"  {kind}, {way}: {both}, ratio {timing.ratio:.2f}"
    if ratios:
        best = min(ratios, key=ratios.__getitem__)
        yield f"  {kind}: {ratios[best]:.2f} against the fastest ({best})"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="names that both have")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = Device(options.device).at(options.precision)
    where = torch_twin.device_for(device.info)
    torch_twin.set_precision(options.precision)
    print(device.info)
    print(f"{torch_twin.description(where)}, torchvision {torchvision.__version__}, batch {options.batch_size}")
    for name in options.networks:
        model = getattr(models, name)((3, options.size, options.size), 1000)
        bench = NetworkBench(device, model, options.batch_size)
        settings: dict[str, Any] = _PLAIN.get(name, {})
        print(name, flush=True)
        for kind in (TRAINING, INFERENCE):
            for line in compare(
                bench, kind, partial(getattr(torchvision.models, name), **settings), where, options.repeats
            ):
                print(line, flush=True)


if __name__ == "__main__":
    main()
