"""One function per command; each returns a record."""
