"""The layers of a network (docs/adding_a_layer.md)."""

from blobnet.layers.activation import Activation
from blobnet.layers.base import Layer, Node
from blobnet.layers.convolution import Conv1D, Conv2D
from blobnet.layers.input import Input
from blobnet.layers.join import Add, Concat, Flatten

__all__ = ["Activation", "Add", "Concat", "Conv1D", "Conv2D", "Flatten", "Input", "Layer", "Node"]
