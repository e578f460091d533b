"""Spark for the phases: the embedded Connect server, sessions, and one task per unit of work.

Only ``session``, ``units`` and ``daemon`` import pyspark, and only when called: starting, watching, interrupting and
stopping a server must stay possible in processes that cannot afford two seconds of imports.
"""
