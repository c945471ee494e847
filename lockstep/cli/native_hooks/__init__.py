"""Builds the C++ kernels ahead of training: compiles, compares with the Python kernels, writes the manifest."""
