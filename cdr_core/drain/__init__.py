"""From a sealed spill set to its consumer, with checkpoints on the way.

``subtask`` is what a task uses: start, poll, cut. Behind it: ``drainer`` hands ``pages`` to each ``channel`` of an
``inbox``, with a ``live`` view behind it; ``tail``, ``remaining`` and ``cut`` say what is left; ``states`` and
``requests`` who answers a checkpoint, and when. ``rows`` decodes records, ``checkpoints`` is the driver's view.
"""
