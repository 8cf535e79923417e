"""Optimisers: one file each, one `OPTIMISER` constant in each."""
