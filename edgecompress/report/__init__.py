"""Records to text. Prints nothing."""
