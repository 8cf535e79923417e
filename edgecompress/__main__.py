"""`python -m edgecompress` is the `edgecompress` command."""

from edgecompress.cli.main import main

main()
