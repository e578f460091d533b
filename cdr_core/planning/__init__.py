"""From a checkpoint, a job spec and a wished parallelism to a plan: which old channels feed which new subtasks."""
