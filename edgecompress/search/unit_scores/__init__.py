"""Scores of channels and dimensions: one file per rule, one `SCORES` constant in each."""
