"""Latency tables: the blocks a search may ask for, their milliseconds, and how these sum up to a network."""
