"""Tests, by what they need: tests/unit runs without OpenCL, tests/layers on every device chosen (conftest.py)."""
