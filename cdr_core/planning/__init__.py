"""From a checkpoint, a job spec and a requested parallelism to a plan: the old channels that feed each new subtask."""
