"""Ways to rewrite layers: one file per method, one `METHOD` constant in each."""
