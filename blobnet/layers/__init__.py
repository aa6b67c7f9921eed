"""The layers of a network (docs/adding_a_layer.md)."""

from blobnet.layers.activation import Activation
from blobnet.layers.adaptive import AdaptiveAveragePool, AdaptiveMaxPool, GlobalMaxPool
from blobnet.layers.attention import MatMul, MultiHeadAttention, Tokens
from blobnet.layers.base import Layer, Node
from blobnet.layers.constant import Constant
from blobnet.layers.convolution import Conv1D, Conv2D
from blobnet.layers.dense import Dense
from blobnet.layers.dropout import Dropout, StochasticDepth
from blobnet.layers.embedding import Embedding
from blobnet.layers.gates import PReLU, Scale, SqueezeExcite
from blobnet.layers.input import Input
from blobnet.layers.join import Add, Concat, Flatten, Multiply
from blobnet.layers.lowered import Contraction, ContractionLayer, function
from blobnet.layers.normalization import BatchNorm
from blobnet.layers.norms import GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm
from blobnet.layers.pooling import AveragePool1D, AveragePool2D, GlobalAveragePool, MaxPool1D, MaxPool2D
from blobnet.layers.recurrent import GRU, LSTM
from blobnet.layers.resize import DepthToSpace, SpaceToDepth, Upsample
from blobnet.layers.standardize import Standardize
from blobnet.layers.transposed import ConvTranspose1D, ConvTranspose2D, ConvTranspose3D
from blobnet.layers.views import Interleave, Pad, Permute, Reshape, Slice, split
from blobnet.layers.volumes import AveragePool3D, Conv3D, MaxPool3D
from blobnet.support.old_names import old_names

__all__ = [
    "GRU",
    "LSTM",
    "Activation",
    "AdaptiveAveragePool",
    "AdaptiveMaxPool",
    "Add",
    "AveragePool1D",
    "AveragePool2D",
    "AveragePool3D",
    "BatchNorm",
    "Concat",
    "Constant",
    "Contraction",
    "ContractionLayer",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvTranspose1D",
    "ConvTranspose2D",
    "ConvTranspose3D",
    "Dense",
    "DepthToSpace",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNorm",
    "Input",
    "InstanceNorm",
    "Interleave",
    "Layer",
    "LayerNorm",
    "LocalResponseNorm",
    "MatMul",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MultiHeadAttention",
    "Multiply",
    "Node",
    "PReLU",
    "Pad",
    "Permute",
    "Reshape",
    "Scale",
    "Slice",
    "SpaceToDepth",
    "SqueezeExcite",
    "Standardize",
    "StochasticDepth",
    "Tokens",
    "Upsample",
    "function",
    "split",
]

__getattr__ = old_names(__name__, {"Lowered": ContractionLayer})
