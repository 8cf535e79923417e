"""Image sources, their readers, and the three disjoint splits."""
