"""The drain at work: the task that drains a subtask, the driver that watches it, and the files they talk through."""
