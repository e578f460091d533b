"""Spill sets: the records of one new subtask as segments in files, in the order in which they will be drained."""
