"""The Recoveries page with ten thousand recoveries: its API over HTTP, behind a real Airflow and its login."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from cdr_core.metadata import DrillOutcome, Phase, Repository, upgrade
from tests.benchmarks.figures import Bench, Figure, Sizes, seconds
from tests.page import sample

NOT_MEASURED = ("The page with its metadata in PostgreSQL, and over a network.",)
RECOVERIES = 10_000
GOAL_SECONDS = 0.3
ROOM = 400_000_000

Ask = Callable[[str], None]

CALLS = (
    ("page-list", "the first fifty of 10,000 recoveries", "recoveries?limit=50"),
    ("page-last", "the last fifty", "recoveries?limit=50&offset=9950"),
    ("page-search", "words in job, checkpoint, target or id", "recoveries?q=exchange-19"),
    ("page-recovery", "one recovery, 128 → 96 subtasks, a ledger of 25,000 lines", "recoveries/{wide}"),
    ("page-drills", "1,000 drills: the newest hundred and every plan", "drills"),
)


def needs(_sizes: Sizes) -> int:
    return ROOM


def run(bench: Bench) -> Iterator[Figure]:
    home = bench.scratch / "page"
    home.mkdir()
    wide = _fill(bench, home)
    with ExitStack() as stack:
        ask = _in_process(home, stack) if bench.tiny else _over_http(bench, home, stack)
        ask("recoveries/none")
        for name, what, path in CALLS:
            yield _figure(bench, ask, name, what, path.format(wide=wide))


def _fill(bench: Bench, home: Path) -> str:
    bench.say("page: writing recoveries and drills")
    url = f"sqlite:///{home / 'cdr.db'}"
    upgrade(url)
    with Repository.open(url) as repository:
        sample.many(repository, 20 if bench.tiny else RECOVERIES)
        sample.drilled(repository, "nightly", [DrillOutcome.PASSED] * (2 if bench.tiny else 1000), days_apart=0.3)
        return sample.wide(repository, senders=1 if bench.tiny else 128)


def _figure(bench: Bench, ask: Ask, name: str, what: str, path: str) -> Figure:
    ask(path)  # what is loaded once is not what is asked about
    measured, baseline = bench.taking_turns(
        lambda: seconds(lambda: ask(path)), lambda: seconds(lambda: ask("recoveries/none"))
    )
    return Figure(
        name,
        what,
        "the same way to a recovery that is not there",
        "s",
        tuple(measured),
        tuple(baseline),
        goal=f"< {1000 * GOAL_SECONDS:.0f} ms",
        reached=statistics.median(measured) < GOAL_SECONDS,
    )


def _over_http(bench: Bench, home: Path, stack: ExitStack) -> Ask:
    # Not at the top: Airflow takes seconds to load, and the sample does without.
    from tests.page.server import running_page

    bench.say("page: starting Airflow's api-server")
    server = stack.enter_context(running_page(bench.scratch / "airflow", home))
    client = stack.enter_context(server.client("vic"))

    def ask(path: str) -> None:
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == (404 if path == "recoveries/none" else 200), answer.text

    return ask


def _in_process(home: Path, stack: ExitStack) -> Ask:
    """The reads alone: shows that they work, not what they take."""
    from cdr_airflow.page import views

    repository = stack.enter_context(Repository.open(f"sqlite:///{home / 'cdr.db'}"))

    def ask(path: str) -> None:
        if path.startswith("recoveries?"):
            found = repository.recovery_page(search="exchange-19" if "q=" in path else "").lines
            json.dumps([views.line(line, datetime.now(UTC)) for line in found])
        elif path == "drills":
            repository.drills()
        elif path != "recoveries/none":
            repository.flows(path.rpartition("/")[2], Phase.FILTER)

    return ask
