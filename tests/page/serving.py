"""``python -m tests.page.serving PORT``: Airflow's own api-server application with our plugin, and nothing else of it.

In a process of its own, because Airflow reads its configuration once; with a database made from its models, which takes
a tenth of the time of its migrations.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.page.server import STRANGER

# As Airflow's own entry does: whoever serves requests may read what tasks may not.
os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def main(port: int) -> None:
    import uvicorn
    from airflow.api_fastapi.app import create_app
    from airflow.utils.db import initdb

    initdb()
    keep_out(STRANGER)
    app = create_app(apps="core")
    Path(os.environ["AIRFLOW_HOME"], "routes.json").write_text(json.dumps(routes()))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def keep_out(name: str) -> None:
    """Airflow's own simple auth manager lets every viewer see every DAG; this one user it lets see none."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    ask = SimpleAuthManager.is_authorized_dag

    def is_authorized_dag(self: Any, *, user: Any, **asked: Any) -> bool:
        return user.get_name() != name and ask(self, user=user, **asked)

    SimpleAuthManager.is_authorized_dag = is_authorized_dag  # type: ignore[method-assign]


def routes() -> list[tuple[str, str]]:
    """Every route of the page, with something in place of its parameters: what a test must not forget."""
    from fastapi.routing import APIRoute

    from cdr_airflow.page.app import make_page

    found = []
    for route in _flat(make_page().routes):
        if isinstance(route, APIRoute):
            path = re.sub(r"\{[^}]+\}", "x", route.path.replace("{number}", "1"))
            found += [(method, path) for method in sorted(route.methods)]
    return found


def _flat(routes: Any) -> Iterator[Any]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else _flat(inner.routes)


if __name__ == "__main__":
    main(int(sys.argv[1]))
