"""Plans and the passes that make them, without OpenCL."""
