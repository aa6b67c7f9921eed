"""The commands of ``blobnet``: a module each, with ``run(options)`` that returns the exit status.

blobnet.cli imports a command's module when it is asked for, so that ``blobnet --help`` waits for none of them.
"""
