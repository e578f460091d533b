#!/bin/sh
# Run once by PostgreSQL's own entry point, on an empty data directory: Airflow's database beside cdr's.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --command 'CREATE DATABASE airflow'
