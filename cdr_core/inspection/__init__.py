"""What a checkpoint holds, and what a recovery of it would do, as values and as text."""
