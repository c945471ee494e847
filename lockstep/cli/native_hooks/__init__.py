"""Building the C++ kernels ahead of training: compile, compare with the kernels in Python, write the manifest."""
