"""Facts of devices, as data: what is published of architectures, and what is known of one device.

Nothing here asks a driver or chooses anything.
"""
