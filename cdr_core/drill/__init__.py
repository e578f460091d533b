"""Restore drills: a recovery that is rehearsed, judged and thrown away."""
