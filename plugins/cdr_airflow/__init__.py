"""The Airflow side of cdr: the phase operator, and Airflow embedded under ``CDR_HOME``.

Airflow puts the plugins folder on ``sys.path`` and imports its modules in every one of its processes: no module here
may import pyspark, pyarrow, numba, SQLAlchemy models or boto3 when it is imported itself.
"""
