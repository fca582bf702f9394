"""Operators broken on purpose, as an outside package would bring them (``OPGRAFT_OPERATORS``); the framework level must turn red."""
