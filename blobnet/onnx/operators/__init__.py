"""The operators of ONNX graphs: functions from a node's attributes and inputs to layers.

A newcomer is a function here, with the decorator ``operator``, or a row of a table that such a function reads
(``elementwise._OF_ONE``, say), and a line in the list of docs/onnx.md.
"""

from blobnet.onnx.operation import OPERATORS
from blobnet.onnx.operators import (  # noqa: F401 -- they register what they have.
    elementwise,
    norms,
    products,
    quantized,
    recurrent,
    reductions,
    resizing,
    sampling,
    shapes,
    windows,
)

__all__ = ["OPERATORS"]
