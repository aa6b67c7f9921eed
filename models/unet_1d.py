"""The conditional 1-D U-Net whose convolutions seed 002 optimises: that of diffusion policies (Chi et al., *Diffusion
Policy: Visuomotor Policy Learning via Action Diffusion*, 2023). A sequence goes in and one of the same shape comes out;
a condition scales and shifts the units of every block (Perez et al., *FiLM*, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import blobnet as bn
from blobnet import layers
from blobnet.errors import ShapeError

#: Every unit of a sequence times its own number of the condition, and plus another one.
_MODULATE = """function (V[N, C, ...], S[N, C], B[N, C]) -> (O) {
  O[n, c, ...] = +(V[n, c, ...] * (1 + S[n, c]) + B[n, c]);
}"""


def unet_1d(
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] = (2, 16),
    seed: int = 0,
    condition: int = 64,
    filters: Sequence[int] = (256, 512, 1024),
    kernel_size: int = 5,
    groups: int = 8,
) -> bn.Model:
    """The inputs ``sequence`` and ``condition``, and the output ``noise`` of the sequence's shape.

    At the defaults the convolutions are seed 002's: 1024 units at 4 positions are the most common ones.

    Args:
        input_shape: (units, width) of a sequence; or this as ``sequence``, and (numbers,) as ``condition``.
        seed: of the initial weights.
        condition: numbers of a condition (with the embedding of the diffusion's step).
        filters: units of each level, each at half the width of the one before.
        kernel_size: taps, an odd number.
        groups: of the group norms; they divide all filters.

    Raises:
        ShapeError: the width cannot be halved so often.
    """
    if isinstance(input_shape, Mapping):
        (condition,) = input_shape.get("condition", (condition,))
        input_shape = input_shape.get("sequence", (2, 16))
    units, width = input_shape
    if width % 2 ** (len(filters) - 1):
        rule = f"the width must be a multiple of {2 ** (len(filters) - 1)}: it is halved {len(filters) - 1} times"
        raise ShapeError("unet_1d", rule, input=tuple(input_shape))
    sequence, given = layers.Input(units, width=width, name="sequence")(), layers.Input(condition, name="condition")()
    known = layers.Activation("mish", name="condition_mish")(given)

    def convolution(node: layers.Node, count: int, name: str) -> layers.Node:
        node = layers.Conv1D(count, kernel_size, padding=kernel_size // 2, name=name)(node)
        node = layers.GroupNorm(groups, name=f"{name}_norm")(node)
        return layers.Activation("mish", name=f"{name}_mish")(node)

    def block(node: layers.Node, count: int, name: str) -> layers.Node:
        branch = convolution(node, count, f"{name}_a")
        scale, shift = (layers.Dense(count, name=f"{name}_{part}")(known) for part in ("scale", "shift"))
        branch = layers.Contraction(_MODULATE, name=f"{name}_modulate")([branch, scale, shift])
        branch = convolution(branch, count, f"{name}_b")
        shortcut = layers.Conv1D(count, 1, name=f"{name}_shortcut")(node) if node.shape.units != count else node
        return branch + shortcut

    node, skips = sequence, []
    for level, count in enumerate(filters, start=1):
        node = block(block(node, count, f"down{level}_1"), count, f"down{level}_2")
        skips.append(node)
        if level < len(filters):
            node = layers.Conv1D(count, 3, stride=2, padding=1, name=f"down{level}_shrink")(node)
    node = block(block(node, filters[-1], "middle_1"), filters[-1], "middle_2")
    for level in range(len(filters), 1, -1):
        node, count = layers.Concat(name=f"join{level}")([node, skips[level - 1]]), filters[level - 2]
        node = block(block(node, count, f"up{level}_1"), count, f"up{level}_2")
        node = layers.ConvTranspose1D(count, 4, stride=2, padding=1, name=f"up{level}_grow")(node)
    node = convolution(node, filters[0], "last")
    noise = layers.Conv1D(units, 1, name="noise")(node)
    return bn.Model({"sequence": sequence, "condition": given}, {"noise": noise}, seed=seed)
