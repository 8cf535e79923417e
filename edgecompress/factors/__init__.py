"""How the weights of a rewritten layer are found: statistics, metrics, refit, BN and bias repair."""
