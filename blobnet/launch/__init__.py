"""A launch as data: kernel files and their headers, calls, epilogues, and tasks that can be done in several ways.

Nothing here needs a device.
"""
