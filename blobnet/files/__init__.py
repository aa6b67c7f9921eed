"""Files: written all or nothing, read without trusting them, and blobnet's model format.

Weights of other frameworks are in blobnet.interop.
"""
