"""The commands of ``blobnet``: a module each, with ``run(options)`` that returns the exit status.

blobnet.command_line.main imports a command's module when it is asked for: ``blobnet --help`` waits for none.
"""
