"""OpenCL kernels, one ``.cl`` file a kernel: ``<family>/<direction>.cl``. See docs/kernels.md."""
