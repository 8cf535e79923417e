"""The command line: parses, calls the pipeline, shows the report. Imports torch only inside commands."""
