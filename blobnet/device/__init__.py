"""OpenCL: drivers, devices, memory, programs, queues, and what was measured on a device.

The only package that imports pyopencl. Nothing here knows layers or networks.
"""
