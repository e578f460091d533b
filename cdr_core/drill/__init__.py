"""Restore drills: a recovery that is rehearsed, judged and thrown away.

``plan``, ``choice``, ``verdict`` and ``history`` decide on values alone; ``find``, ``scratch``, ``begin``, ``checks``,
``end`` and ``run`` are the rim. A plan is read when a DAG is parsed, so nothing heavy is imported by ``plan`` and
``plans``.
"""
