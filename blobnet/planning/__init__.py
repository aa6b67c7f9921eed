"""The planner: from a graph to the memory of every blob and the kernels in their order.

Passes without a device, each a module with one function from frozen values to a frozen value; none changes what another
has made. In their order: roles, placement, deltas, layout, sites, fusion, schedule, constants, statistics, combining,
memory; ``plan`` runs them.
"""

from blobnet.planning.memory import STEP_WORDS, Buffer, sample_slots
from blobnet.planning.plan import Plan, make_plan
from blobnet.planning.statistics import STATISTICS

__all__ = ["STATISTICS", "STEP_WORDS", "Buffer", "Plan", "make_plan", "sample_slots"]
