"""Files nobody should be given: every format the package reads, damaged on purpose."""
