"""Long tests that are no part of `make test`: each has a make target of its own."""
