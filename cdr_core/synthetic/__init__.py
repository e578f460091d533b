"""Checkpoints in Flink's format without a Flink: any size and shape, seeded."""

from cdr_core.synthetic.checkpoint import ExchangeTotals, Generated, generate
from cdr_core.synthetic.shape import ExchangeShape, Shape, Spread

__all__ = ["ExchangeShape", "ExchangeTotals", "Generated", "Shape", "Spread", "generate"]
