"""One file per way to read images, each with one `Reader` constant."""
