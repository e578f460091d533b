"""A recovery whose target is a checkpoint: its files checked and joined, other state, and the new ``_metadata``."""

OUTPUT_DOWNSTREAM = "recover_output_downstream"
"""The option of a recovery by which all in-flight data becomes input state; fixed when it is created, because half of a
channel cannot go one way and half the other."""
