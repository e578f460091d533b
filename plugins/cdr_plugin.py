"""The plugin that Airflow finds: the Recoveries page under ``/cdr``, in the navigation and as a tab of every run.

Airflow imports this file in each of its processes, so it only contains names: the page itself is made at its first
request, which happens in the api-server only.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from cdr_airflow.page.mounting import PREFIX, LazyPage, base_path

_BASE = base_path()
_ICONS = {"icon": f"{_BASE}/static/icon.svg", "icon_dark_mode": f"{_BASE}/static/icon-dark.svg"}


class CdrPlugin(AirflowPlugin):
    name = "cdr"
    fastapi_apps = [{"app": LazyPage(), "url_prefix": PREFIX, "name": "cdr"}]  # noqa: RUF012 # Airflow's own shape
    external_views = [  # noqa: RUF012
        {
            "name": "Recoveries",
            "href": f"{_BASE}/",
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "recoveries",
            **_ICONS,
        },
        {
            "name": "Recovery",
            # Airflow fills these in, encoded.
            "href": f"{_BASE}/runs/{{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "recovery",
            **_ICONS,
        },
    ]
