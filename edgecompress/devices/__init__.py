"""Devices: one driver per file, and the measurement protocol they all follow. Never imports torch."""
