"""A kernel or a layer held against float64 references, in hostile memory, in a child process that may crash.

Whole trainings are examined in blobnet.checkup.
"""
