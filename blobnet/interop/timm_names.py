"""timm's names for the parameters of blobnet's models, of the networks for which they are not torchvision's.

What is not here either has the same names (resnet, densenet, inception_v3), or computes otherwise there: the norms of
timm's mobilenet_v1 and mobilenet_v3_small have another epsilon.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from blobnet.interop.torch_names import Rule, in_stages, numbered, rule
from blobnet.network.graph import Graph, Vertex


def _inverted(blocks: Sequence[int]) -> tuple[Rule, ...]:
    """Inverted residuals; ``blocks`` is how many each stage has."""

    def convolutions(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        stage, number = in_stages(int(match[1]), blocks)
        is_wider = any(item.layer.name == f"block{match[1]}_expand_conv" for item in graph.vertices)
        parts = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
        if not is_wider:
            parts = {"depthwise": "conv_dw", "project": "conv_pw"}
        module = parts[match[2]] if match[3] == "conv" else f"bn{[*parts].index(match[2]) + 1}"
        return f"blocks.{stage - 1}.{number}.{module}"

    def gates(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        stage, number = in_stages(int(match[1]), blocks)
        return f"blocks.{stage - 1}.{number}.se.conv_{'reduce' if match[2] == 'squeeze' else 'expand'}"

    first = Rule(r"block(\d+)_(expand|depthwise|project)_(conv|norm)", convolutions)
    return first, Rule(r"block(\d+)_(squeeze|excite)", gates, axes=2)


_ENDS = (
    rule("stem_(conv|norm)", "{1:conv=conv_stem,norm=bn1}"),
    rule("head_(conv|norm)", "{1:conv=conv_head,norm=bn2}"),
    rule("logits", "classifier"),
)
_VGG = (
    numbered(r"conv\d_\d", "features"),
    rule("dense1", "pre_logits.fc1", planes="flatten"),
    rule("dense2", "pre_logits.fc2", axes=2),
    rule("logits", "head.fc"),
)
_BLOCK = r"stage(\d)_block(\d+)"

#: Families of networks, and their rules, as of torch_names.
FAMILIES: dict[str, tuple[Rule, ...]] = {
    "vgg": _VGG,
    "vgg_bn": (numbered(r"norm\d_\d", "features"), *_VGG),
    "mobilenet_v2": (*_ENDS, _inverted((1, 2, 3, 4, 3, 3, 1))[0]),
    "efficientnet_b0": (*_ENDS, *_inverted((1, 2, 2, 3, 3, 4, 1))),
    "convnext": (
        rule("stem_(conv|norm)", "stem.{1:conv=0,norm=1}"),
        rule(f"{_BLOCK}_(depthwise|norm)", "stages.{-1}.blocks.{-2}.{3:depthwise=conv_dw,norm=norm}"),
        rule(f"{_BLOCK}_(expand|project)", "stages.{-1}.blocks.{-2}.mlp.{3:expand=fc1,project=fc2}", axes=-2),
        rule(f"{_BLOCK}_scale", "stages.{-1}.blocks.{-2}", scale=(".gamma", 0, 0)),
        rule(r"shrink(\d)_(conv|norm)", "stages.{1}.downsample.{2:norm=0,conv=1}"),
        rule("last_norm", "head.norm"),
        rule("logits", "head.fc"),
    ),
    "vision_transformer": (
        rule("patches", "patch_embed.proj"),
        rule("tokens", "", token=("cls_token", 2, 0), position=("pos_embed", 1, 0)),
        rule(r"block(\d+)_(a|b)_norm", "blocks.{-1}.norm{2:a=1,b=2}"),
        rule(
            r"block(\d+)_attention",
            "blocks.{-1}.attn",
            query=(".qkv.weight", 0, 0),
            query_bias=(".qkv.bias", 0, 0),
            output=(".proj.weight", 0, 0),
            output_bias=(".proj.bias", 0, 0),
        ),
        rule(r"block(\d+)_(expand|project)", "blocks.{-1}.mlp.{2:expand=fc1,project=fc2}", axes=-1),
        rule("last_norm", "norm"),
        rule("logits", "head"),
    ),
}
