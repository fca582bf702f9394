"""Small models that the framework level trains and decodes, with and without overrides."""
