"""Small faults put into the code on purpose, each with the tests that must notice it.

``python -m tests.mutants`` puts them in one at a time; the ``.toml`` files list them by area.
"""
