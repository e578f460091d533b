"""What dead attempts and finished recoveries left behind: found, explained, removed; never anything else."""

from __future__ import annotations

from cdr_core.sweep.leftovers import sweep, sweep_recovery, sweep_spilled, sweep_unpublished
from cdr_core.sweep.report import Left, Leftover, Report

__all__ = ["Left", "Leftover", "Report", "sweep", "sweep_recovery", "sweep_spilled", "sweep_unpublished"]
