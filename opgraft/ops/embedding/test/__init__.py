"""Tests of embedding."""
