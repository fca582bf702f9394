"""Kernels of embedding."""
