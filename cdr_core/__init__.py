"""cdr: recover the in-flight records of a Flink unaligned checkpoint, exactly once, with a receipt."""

__version__ = "0.2.0"
