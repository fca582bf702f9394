"""Real vLLM with overrides: the plugin, counts over its processes, its runs, and its platform for the simulated device."""
