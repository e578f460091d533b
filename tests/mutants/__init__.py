"""Small faults put into the code on purpose, each with the tests that must notice it.

``python -m tests.mutants`` puts them in one at a time; the ``.toml`` files list them by area. An audit of an earlier
version made 101 of them by hand. "audit: FILE:LINE" in ``why`` is one that survived then; ``[[gone]]`` lists those
whose code does not exist any more.
"""
