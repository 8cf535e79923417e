"""Ways to train a network, one file each."""
