"""Optimizers: one launch over all trained parameters (with one learning rate), in PyTorch's definitions.

All parameters lie in one buffer (:class:`blobnet.network.parameters.ParameterTable`), their gradients in another at the
same offsets. The zeros between two parameters have gradients of 0, so that every optimizer leaves them 0. Weight decay
applies to the decayed parameters alone, which come first. Where ``rates`` give parameters learning rates of their own,
those with the same one lie in a row (:class:`blobnet.network.parameters.ParameterGroup`), and each row has its launch.

In the equations w is a parameter, g its gradient, t = 1, 2, ... the step, and everything else starts as 0. With
``clip_norm``, every g is first multiplied by min(1, clip_norm / (norm + 1e-6)), norm = sqrt(sum of g^2 over all
parameters) (Pascanu et al., *On the difficulty of training recurrent neural networks*, 2013).
"""

from blobnet.optimizers.adam import Adam, AdamW
from blobnet.optimizers.base import CLIP_SCALE as CLIP_SCALE
from blobnet.optimizers.base import HYPERPARAMETERS as HYPERPARAMETERS
from blobnet.optimizers.base import Optimizer
from blobnet.optimizers.lamb import LAMB
from blobnet.optimizers.lion import Lion
from blobnet.optimizers.muon import Muon
from blobnet.optimizers.rmsprop import RMSprop
from blobnet.optimizers.sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "RMSprop",
]
