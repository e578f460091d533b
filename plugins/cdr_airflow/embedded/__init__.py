"""Airflow embedded under ``CDR_HOME``: its own home, database, login and processes, reachable from this host only.

``python -m cdr_airflow.embedded demo | up | down | status``. Nothing outside ``CDR_HOME`` is written, and an Airflow
that the user has elsewhere is neither read nor touched.
"""
