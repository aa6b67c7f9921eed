"""Losses on a model's output: dL/d output, and for each sample its loss and whether it was right.

The loss of a batch is the mean over its samples, each of which has a weight (1 unless something else was given). The
losses of classes take a class for each position of the output, so one for each sample where it has no positions: the
logits of (N, units, height, width) go with classes of (N, height, width), and with a depth in both. There the mean is
one over all positions of the batch, each with the weight of its sample and of its class; a class to ignore has the
weight 0.

Labels reach the device as 4-byte numbers: classes as int32, targets as float32.
"""

from blobnet.losses.base import IGNORED as IGNORED
from blobnet.losses.base import Loss
from blobnet.losses.binary_cross_entropy import BinaryCrossEntropy
from blobnet.losses.center_net import CenterNet
from blobnet.losses.cross_entropy import CrossEntropy
from blobnet.losses.dice import Dice
from blobnet.losses.expression import Expression
from blobnet.losses.focal import Focal
from blobnet.losses.huber import Huber
from blobnet.losses.mean_absolute_error import MeanAbsoluteError
from blobnet.losses.mean_squared_error import MeanSquaredError

__all__ = [
    "BinaryCrossEntropy",
    "CenterNet",
    "CrossEntropy",
    "Dice",
    "Expression",
    "Focal",
    "Huber",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
]
