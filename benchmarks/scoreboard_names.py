"""What the rows of the scoreboard are called."""

DENSE, OURS, INT8, OURS_INT8 = "dense", "ours", "int8 alone", "ours + int8"
COMPRESSED = (OURS, "torch-pruning", "uniform thinning", "ALDS", "LR-S2", "SVD-NAS, as published")
"""Methods with a knob, whose networks are compared at equal milliseconds and trained alike."""
METHODS = (DENSE, *COMPRESSED, INT8, OURS_INT8)
"""All rows, in the order of the table."""
