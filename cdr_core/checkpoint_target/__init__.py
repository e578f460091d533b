"""A recovery whose target is a checkpoint: its files checked and joined, other state, and the new ``_metadata``."""
