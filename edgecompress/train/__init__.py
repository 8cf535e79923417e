"""Training: the loop, its optimisers, methods that make networks easy to compress, images from nothing."""
