"""Files for other runtimes: one file per format, each checked against the model it came from."""
