"""Publishing prepared output exactly once: committables, the commit protocol, and the sinks it speaks to."""
