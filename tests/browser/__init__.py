"""What a person does in Airflow's UI and on the Recoveries page, done in a real Chromium; ``make test-browser``."""
