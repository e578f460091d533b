"""From a sealed spill set to rows: the records of a new subtask, decoded in drain order."""
