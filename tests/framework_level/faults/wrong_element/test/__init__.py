"""The levels of the broken operator."""
