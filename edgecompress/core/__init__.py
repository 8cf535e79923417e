"""Records, storage, plug-in discovery and progress: what every other package shares. No torch."""
