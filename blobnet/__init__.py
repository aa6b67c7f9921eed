"""blobnet: train and run convolutional networks through OpenCL, on padded blobs.

>>> import blobnet as bn
>>> from blobnet import layers
>>> model = bn.Sequential([layers.Input(1, 28, 28), layers.Flatten(), layers.Dense(10)])
"""

from blobnet import callbacks, datasets, layers, losses, optimizers, schedules
from blobnet.model import Model, Sequential, load

__version__ = "0.1.0"
__all__ = [
    "Model",
    "Sequential",
    "callbacks",
    "datasets",
    "layers",
    "load",
    "losses",
    "optimizers",
    "schedules",
]
