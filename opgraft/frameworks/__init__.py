"""Real models and engines with and without overrides."""
