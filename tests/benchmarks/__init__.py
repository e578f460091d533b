"""How fast and how large: every figure stands beside a baseline of the same run. ``make bench`` runs them."""
