"""Processes that train one model together: ranks, what they exchange, and whether all are there.

Nothing here knows what a training exchanges.
"""

from blobnet.parallel.world import World

__all__ = ["World"]
