"""The Recoveries page: a small web application inside Airflow's api-server, under ``/cdr``.

``mounting`` is all that Airflow's other processes ever import. ``app`` puts the parts together: ``access`` (who may),
``api`` and ``actions`` (what can be asked), ``views`` and ``flow`` (rows as answers, pure), ``prometheus`` (metrics),
``static/`` (the page itself: plain modules, no build step, everything inserted as text).
"""
