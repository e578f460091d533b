"""The embedded Airflow's ``airflow.cfg``: only what differs from Airflow's defaults, with the reason."""

from __future__ import annotations

from cdr_airflow.demo_checkpoint import REPOSITORY
from cdr_airflow.embedded.home import USER, Home, Secrets

LOOPBACK = "127.0.0.1"
SQLITE = "cdr_airflow.embedded.sqlite"
"""The module whose values all processes of Airflow connect with."""


def sections(home: Home, port: int, secrets: Secrets) -> dict[str, dict[str, str]]:
    """Return all options, by section."""
    url = f"http://{LOOPBACK}:{port}"
    return {
        "core": {
            "dags_folder": str(REPOSITORY / "dags"),
            "plugins_folder": str(REPOSITORY / "plugins"),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "executor": "LocalExecutor",
            # One process each, forked at the start: two runs of five tasks in a row never need more.
            "parallelism": "4",
            "fernet_key": secrets.fernet_key,
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(home.passwords),
        },
        "database": {
            "sql_alchemy_conn": f"sqlite:///{home.database}",
            # Wait for other writers instead of answering with HTTP 500.
            "sql_alchemy_connect_args": f"{SQLITE}.connect_args",
            "sql_alchemy_connect_args_async": f"{SQLITE}.connect_args_async",
            # As many connections as the API server has threads: a request that waits holds one.
            "sql_alchemy_pool_size": "10",
            "sql_alchemy_max_overflow": "40",
        },
        "logging": {"base_log_folder": str(home.logs / "tasks"), "colored_console_log": "False"},
        "api": {
            "host": LOOPBACK,
            "port": str(port),
            "base_url": url,
            "workers": "1",
            "secret_key": secrets.session_key,
        },
        "api_auth": {"jwt_secret": secrets.jwt_secret},
        "workers": {
            # Seconds until a task learns that it was marked failed; with the default it could not stop within ten
            # seconds.
            "min_heartbeat_interval": "1",
            # A killed task is noticed at once, as its driver holds none of its channels; this covers processes of other
            # tasks.
            "socket_cleanup_timeout": "3",
            # One host runs everything, even Spark: a slow api-server is no reason to lose a try.
            "execution_api_timeout": "20",
        },
        "scheduler": {
            "scheduler_heartbeat_sec": "2",
            "scheduler_idle_sleep_time": "0.5",
            # A host that went down in the middle: its tasks are retried soon after the next start.
            "task_instance_heartbeat_timeout": "30",
            "task_instance_heartbeat_timeout_detection_interval": "5",
            "orphaned_tasks_check_interval": "30",
        },
        "dag_processor": {"refresh_interval": "30", "min_file_process_interval": "15"},
        "usage_data_collection": {"enabled": "False"},
    }


def render(values: dict[str, dict[str, str]]) -> str:
    """Return the file's text; a percent sign is the format's own and doubled."""
    lines = ["# Written by cdr at every start; changes are lost."]
    for section, options in values.items():
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {value.replace('%', '%%')}" for name, value in options.items()]
    return "\n".join([*lines, ""])
