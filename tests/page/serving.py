"""``python -m tests.page.serving PORT``: Airflow's own api-server application with our plugin, and nothing else of it.

In a process of its own, because Airflow reads its configuration once; with a database made from its models, which takes
a tenth of the time of its migrations.
"""

from __future__ import annotations

import os
import sys

# As Airflow's own entry does: whoever serves requests may read what tasks may not.
os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def main(port: int) -> None:
    import uvicorn
    from airflow.api_fastapi.app import create_app
    from airflow.utils.db import initdb

    initdb()
    uvicorn.run(create_app(apps="core"), host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
