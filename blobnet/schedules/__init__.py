"""Learning rate schedules: pure functions of the step number.

Steps count from 0 over the whole training: step t lies in epoch ``t // steps_per_epoch``, also counted from 0.
"""

from blobnet.schedules.base import Schedule
from blobnet.schedules.constant import Constant
from blobnet.schedules.cosine import Cosine
from blobnet.schedules.custom import Custom
from blobnet.schedules.linear import Linear
from blobnet.schedules.one_cycle import OneCycle
from blobnet.schedules.step import Step

__all__ = [
    "Constant",
    "Cosine",
    "Custom",
    "Linear",
    "OneCycle",
    "Schedule",
    "Step",
]
