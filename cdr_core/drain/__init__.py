"""From a sealed spill set to rows or channel state, with recovery checkpoints on the way."""
