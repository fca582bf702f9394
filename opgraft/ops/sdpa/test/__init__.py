"""Tests of sdpa."""
