"""The command line: thin, over the same functions that Python programs call."""
