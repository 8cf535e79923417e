"""Rank selections: one file per rule, one `SELECTION` constant in each."""
