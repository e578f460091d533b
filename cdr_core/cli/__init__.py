"""The shell: ``cdr``. Results go to stdout, progress to stderr, the exit code says what happened."""
