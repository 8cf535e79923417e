"""Our own benchmark program for Linux boards: C on LiteRT's library, compiled where it is needed."""
