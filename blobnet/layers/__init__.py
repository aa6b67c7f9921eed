"""The layers of a network (docs/adding_a_layer.md)."""

from blobnet.layers.activation import Activation
from blobnet.layers.base import Layer, Node
from blobnet.layers.constant import Constant
from blobnet.layers.convolution import Conv1D, Conv2D
from blobnet.layers.dense import Dense
from blobnet.layers.dropout import Dropout
from blobnet.layers.input import Input
from blobnet.layers.join import Add, Concat, Flatten
from blobnet.layers.normalization import BatchNorm
from blobnet.layers.pooling import AveragePool1D, AveragePool2D, GlobalAveragePool, MaxPool1D, MaxPool2D
from blobnet.layers.standardize import Standardize

__all__ = [
    "Activation",
    "Add",
    "AveragePool1D",
    "AveragePool2D",
    "BatchNorm",
    "Concat",
    "Constant",
    "Conv1D",
    "Conv2D",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAveragePool",
    "Input",
    "Layer",
    "MaxPool1D",
    "MaxPool2D",
    "Node",
    "Standardize",
]
