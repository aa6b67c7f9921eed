"""Small things that know nothing of networks: processes, caches, tables, names.

Nothing here imports NumPy, OpenCL or another package of blobnet but blobnet.errors.
"""
