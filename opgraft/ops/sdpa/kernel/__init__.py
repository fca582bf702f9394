"""Kernels of sdpa."""
