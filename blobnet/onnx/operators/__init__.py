"""The operators of ONNX graphs, a function for each: from a node's attributes and inputs to layers.

A newcomer is one function here, with the decorator ``operator``, and a line in the list of docs/onnx.md.
"""

from blobnet.onnx.operation import OPERATORS
from blobnet.onnx.operators import (  # noqa: F401 -- they register what they have.
    elementwise,
    norms,
    products,
    quantized,
    reductions,
    resizing,
    sampling,
    shapes,
    windows,
)

__all__ = ["OPERATORS"]
