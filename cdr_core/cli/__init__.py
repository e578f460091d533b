"""The command line: ``cdr``. Results go to stdout, progress to stderr, the exit code tells the outcome."""
