"""The page and its API over HTTP, behind Airflow's real login: who may, and what is said of recoveries that were run.

One file, so that one api-server serves all of it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from cdr_core.metadata import DrillArgs, DrillOutcome, Phase, RecoveryState, Repository, upgrade
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.page import sample
from tests.page.conftest import Sample
from tests.page.server import STRANGER
from tests.support import draining, inline
from tests.support.checkpoints import FixtureCheckpoints

ACTION = {"X-Cdr-Action": "1"}


def test_every_address_is_closed_to_anonymous_callers(page: Sample) -> None:
    asked = json.loads((page.server.log.parent / "routes.json").read_text())
    assert {path for _, path in asked} >= {
        *("/", "/metrics", "/drills", "/recoveries/x", "/runs/x/x", "/api/v1/recoveries", "/api/v1/drills"),
        *("/api/v1/recoveries/x/receipt", "/api/v1/recoveries/x/checkpoints/1/export", "/api/v1/runs/x/x"),
    }
    with page.server.client(None) as client:
        for method, path in asked:
            answer = client.request(method, path, json={} if method == "POST" else None, headers=ACTION)
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"] == "You are not signed in"
        for closed in ("/docs", "/openapi.json", "/redoc", "/static/../app.py"):
            assert client.get(closed).status_code in {401, 404}, closed


def test_an_anonymous_browser_gets_a_page_with_the_way_in(page: Sample) -> None:
    answer = page.server.get("/", None, headers={"Accept": "text/html"})
    assert answer.status_code == 401
    assert 'href="/auth/login?next=' in answer.text


def test_a_forged_token_is_refused(page: Sample) -> None:
    with httpx.Client(base_url=f"{page.server.url}/cdr", cookies={"_token": "x.y.z"}) as client:
        assert client.get("/api/v1/recoveries").status_code in {401, 403}


def test_a_viewer_sees_everything_and_may_do_nothing(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.wide}")
    assert "not act" in answer["actions"]["take"]
    with page.server.client("vic") as client:
        for path in (
            f"/api/v1/recoveries/{page.wide}/checkpoints",
            f"/api/v1/recoveries/{page.wide}/checkpoints/1/export",
        ):
            refused = client.post(path, json={}, headers=ACTION)
            assert refused.status_code == 403, path
            assert set(refused.json()) == {"error", "hint"}
    assert page.server.json(f"/api/v1/recoveries/{page.wide}", "uma")["actions"]["take"] is None


def test_whoever_may_not_see_our_dags_sees_nothing(page: Sample) -> None:
    asked = json.loads((page.server.log.parent / "routes.json").read_text())
    with page.server.client(STRANGER) as client:
        for method, path in asked:
            answer = client.request(method, path, json={} if method == "POST" else None, headers=ACTION)
            assert answer.status_code == 403, (method, path, answer.text[:200])
            assert set(answer.json()) == {"error", "hint"}


def test_a_secret_that_got_into_the_database_gets_out_by_no_address(page: Sample) -> None:
    with Repository.open(page.server.database_url) as repository:
        (drill,) = sample.drilled(repository, f"plan-{sample.CANARY}", [DrillOutcome.FAILED])
        stored = repository.receipt(page.done), repository.attempts(page.done), repository.recovery(page.done)
        (command,) = repository.commands(page.done)
    assert all(sample.CANARY in str(each) for each in (*stored, command))
    at, api = f"/recoveries/{page.done}", "/api/v1"
    real = {
        **{path: path for path in ("/", "/metrics", "/drills", f"{api}/recoveries", f"{api}/drills")},
        "/recoveries/x": at,
        "/drills/x": f"/drills/{drill}",
        "/runs/x/x": f"/runs/cdr_recover/{sample.CANARY}",
        f"{api}/recoveries/x": f"{api}{at}",
        f"{api}/recoveries/x/receipt": f"{api}{at}/receipt",
        f"{api}/recoveries/x/commands/1": f"{api}{at}/commands/{command.id}",
        f"{api}/runs/x/x": f"{api}/runs/cdr_recover/{sample.CANARY}",
        f"{api}/drills/x": f"{api}/drills/{drill}",
    }
    asked = json.loads((page.server.log.parent / "routes.json").read_text())
    assert real.keys() == {path for method, path in asked if method == "GET"}
    for path in real.values():
        answer = page.server.get(path)
        assert answer.status_code == 200, (path, answer.text[:200])
        assert sample.CANARY not in answer.text, path
    told = page.server.json(f"{api}{at}")
    assert told["attempts"][0]["error"] == told["checkpoints"][-1]["reason"] == "denied for ***"
    assert told["commands"][0]["reason"] == told["plan"]["exchanges"][0]["partitioner"] == "denied for ***"
    assert told["spec"].endswith("# denied for ***\n")
    receipt = page.server.json(f"{api}{at}/receipt")
    assert (receipt["redacted"], "receipt_sha256" in receipt) == (True, False), "it is not what was sealed any more"
    for path, accept in ((f"{api}/recoveries/{sample.CANARY}", "*/*"), (f"/{sample.CANARY}", "text/html")):
        missing = page.server.get(path, headers={"Accept": accept})
        assert missing.status_code == 404
        assert sample.CANARY not in missing.text


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {"json": {}}),
        (ACTION, {"data": {"a": "b"}}),
        (ACTION | {"Content-Type": "text/plain"}, {"content": "{}"}),
        (ACTION | {"Origin": "https://elsewhere.example"}, {"json": {}}),
        (ACTION | {"Origin": "null"}, {"json": {}}),
        (ACTION | {"Sec-Fetch-Site": "cross-site"}, {"json": {}}),
        (ACTION | {"Sec-Fetch-Site": "same-site"}, {"json": {}}),
    ],
    ids=["no header", "a form", "plain text", "another origin", "no origin", "cross-site", "same site"],
)
def test_an_action_that_another_site_could_send_is_refused(
    page: Sample, headers: dict[str, str], body: dict[str, Any]
) -> None:
    before = len(page.server.json(f"/api/v1/recoveries/{page.wide}")["commands"])
    with page.server.client("ann") as client:
        answer = client.post(f"/api/v1/recoveries/{page.wide}/checkpoints", headers=headers, **body)
    assert answer.status_code in {403, 415}, answer.text
    assert len(page.server.json(f"/api/v1/recoveries/{page.wide}")["commands"]) == before


def test_the_page_may_act_for_its_user_and_a_program_with_a_token(page: Sample) -> None:
    with page.server.client("uma") as browser:
        origin = {"Origin": page.server.url, "Sec-Fetch-Site": "same-origin"}
        path = f"/api/v1/recoveries/{page.wide}/checkpoints"
        assert browser.post(path, json={}, headers=ACTION | origin).status_code == 202
    with page.server.client("uma", cookie=False) as program:
        assert program.post(path, json={}, headers=ACTION).status_code == 202
        assert program.get("/metrics").status_code == 200


def test_nothing_foreign_may_run_in_the_page_or_frame_it(page: Sample) -> None:
    for path in ("/", "/api/v1/recoveries", "/static/main.js", "/nowhere"):
        headers = page.server.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_list_is_newest_first_and_can_be_searched(page: Sample) -> None:
    answer = page.server.json("/api/v1/recoveries")
    ids = [each["recovery"] for each in answer["recoveries"]]
    assert ids == [page.wide, page.failed, page.overtaken, page.done]
    assert answer["by_state"]["DONE"] == 1
    assert [each["recovery"] for each in page.server.json("/api/v1/recoveries?state=DONE")["recoveries"]] == [page.done]
    running = page.server.json("/api/v1/recoveries?state=running")
    assert {each["recovery"] for each in running["recoveries"]} == {page.wide, page.overtaken}
    for words in ("ORDERS-enrich", "iceberg:lake", "4f1c/chk-881", page.wide.upper()):
        found = page.server.json(f"/api/v1/recoveries?q={words}")
        assert [each["recovery"] for each in found["recoveries"]] == [page.wide], words
    assert page.server.json("/api/v1/recoveries?q=%25")["total"] == 0, "a percent sign is itself"
    assert page.server.json("/api/v1/recoveries?limit=1&offset=3")["recoveries"][0]["recovery"] == page.done


def test_a_done_recovery_has_its_verdict_ledger_flow_and_receipt(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.done}")
    assert answer["state"] == "DONE"
    assert answer["verdict"] == "balanced"
    assert [line["phase"] for line in answer["ledger"]] == [str(phase) for phase in Phase]
    assert [line["balances"] for line in answer["ledger"]] == [None, True, True, True, True]
    picture = answer["flow"][0]
    assert (picture["old"]["nodes"], picture["new"]["nodes"]) == (["0", "1", "2"], ["0", "1"])
    assert sum(link["records"] for link in picture["links"]) == answer["records"] == picture["records"]
    assert all(phase["fraction"] == 1.0 and phase["seconds"] is not None for phase in answer["phases"])
    expired = [each for each in answer["checkpoints"] if each["state"] == "EXPIRED"]
    assert expired
    assert {each["seconds"] for each in expired} == {None}, "its end is when it expired, not when it was taken"
    receipt = page.server.get(f"/api/v1/recoveries/{page.done}/receipt")
    assert receipt.headers["content-disposition"] == f'attachment; filename="cdr-receipt-{page.done}.json"'
    assert receipt.json()["recovery"]["id"] == page.done
    assert receipt.json()["records"]["published"] == answer["records"]
    assert answer["routing"] == receipt.json()["run"]["routing"]
    assert answer["routing"]["handed_over"] + answer["routing"]["replayed"] > answer["bytes"], "lengths count too"


def test_a_failed_recovery_says_why_and_how_to_go_on_and_claims_nothing(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.failed}")
    assert "channel-state" in answer["error"]
    assert f"cdr resume {page.failed}" in answer["hint"]
    assert (answer["records"], answer["bytes"], answer["verdict"], answer["receipt"]) == (None, None, None, False)
    assert [each["records"] for each in answer["flow"]] == [None], "nobody has counted, which is not zero"
    assert answer["routing"] is None
    missing = page.server.get(f"/api/v1/recoveries/{page.failed}/receipt")
    assert missing.status_code == 404
    assert "no receipt" in missing.json()["error"]


def test_whoever_was_fenced_is_named_with_its_successor(page: Sample) -> None:
    attempts = page.server.json(f"/api/v1/recoveries/{page.overtaken}")["attempts"]
    fenced = [each for each in attempts if each["state"] == "FENCED"]
    assert [(each["epoch"], each["fenced_by"], each["try"]) for each in fenced] == [(2, 3, 1)]


def test_many_subtasks_are_drawn_in_groups_and_no_record_is_lost_in_them(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.wide}")
    picture = answer["flow"][0]
    assert len(picture["old"]["nodes"]) <= 48
    assert picture["old"]["nodes"][0] == "0–2"
    assert sum(link["records"] for link in picture["links"]) == answer["records"]


def test_a_hostile_name_is_text_everywhere(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.overtaken}")
    assert answer["job"] == sample.HOSTILE
    shell = page.server.get(f"/recoveries/{page.overtaken}", headers={"Accept": "text/html"})
    assert sample.HOSTILE not in shell.text
    answer_page = page.server.get("/nowhere/<script>alert(1)</script>", headers={"Accept": "text/html"})
    assert answer_page.status_code == 404
    assert "<script>alert" not in answer_page.text


@pytest.mark.parametrize("path", ["/api/v1/recoveries/r-none", "/api/v1/drills/d-none", "/api/v1/nothing", "/nowhere"])
def test_what_is_not_there_is_404_with_a_sentence(page: Sample, path: str) -> None:
    answer = page.server.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "hint"}


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "offset=-1", "state=NONSENSE", f"q={'x' * 201}"])
def test_a_malformed_question_is_422_with_a_sentence(page: Sample, query: str) -> None:
    answer = page.server.get(f"/api/v1/recoveries?{query}")
    assert answer.status_code == 422
    assert query.split("=")[0] in answer.json()["error"]


@pytest.mark.parametrize("path", ["recoveries/%00", "recoveries?q=%00", "drills?plan=a%00b", "runs/cdr_recover/%00"])
def test_a_nul_never_gets_as_far_as_the_database(page: Sample, path: str) -> None:
    answer = page.server.get(f"/api/v1/{path}")
    assert answer.status_code == 422
    assert answer.json()["error"] == "an address holds no NUL"
    assert "content-security-policy" in answer.headers


def test_a_run_leads_to_its_recovery_only_for_our_dags(page: Sample) -> None:
    assert page.server.json("/api/v1/runs/cdr_recover/manual__1")["recovery"] == page.overtaken
    assert page.server.json("/api/v1/runs/cdr_recover/manual__none")["recovery"] is None
    assert page.server.json("/api/v1/runs/another_dag/manual__1")["recovery"] is None


def test_a_checkpoint_is_taken_by_the_drain_and_exported_below_the_root_only(
    page: Sample, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_HOME", str(page.server.home))
    draining.make_slow(monkeypatch, "drain.page=sleep:0.1")
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", 0.05)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'taken'}")
    repository, recovery, settings = draining.spilled(request)
    path = f"/api/v1/recoveries/{recovery}/checkpoints"
    with repository, page.server.client("uma") as client:
        early = client.post(path, json={}, headers=ACTION)
        assert early.status_code == 202, early.text
        waiting = early.json()["command"]
        assert (waiting["state"], waiting["not_ready"]) == ("REQUESTED", True)
        assert waiting["reason"] == "the drain has not started"
        assert client.post(path, json={}, headers=ACTION).json()["command"] == waiting, "a second click adds nothing"
        (shown,) = client.get(f"/api/v1/recoveries/{recovery}").json()["commands"]
        assert shown["waits_until"] > shown["requested_at"]
        worker = threading.Thread(
            target=inline.run, args=(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
        )
        worker.start()
        try:
            first = f"/api/v1/recoveries/{recovery}/commands/{waiting['id']}"
            taken = _until(lambda: _answered(client.get(first).json()))
            assert (taken["state"], taken["checkpoint"], taken["waits_until"]) == ("DONE", 1, None)
            asked = client.post(path, json={}, headers=ACTION)
            assert asked.status_code == 202, asked.text
            command = f"/api/v1/recoveries/{recovery}/commands/{asked.json()['command']['id']}"
            answered = _until(lambda: _answered(client.get(command).json()))
            assert answered["state"] == "DONE", answered
            number = answered["checkpoint"]
            exported = client.post(f"{path}/{number}/export", json={"directory": "/etc"}, headers=ACTION)
            assert exported.status_code in {201, 202}, exported.text  # a busy machine may take longer than it waits
            _until(lambda: Path(exported.json()["directory"], "_metadata").is_file())
        finally:
            worker.join()
        directory = Path(exported.json()["directory"])
        assert directory == page.server.home / "exports" / f"{recovery}-chk-{number}"
        assert (directory / "_metadata").is_file()
        again = _until(lambda: _refused(client.post(f"{path}/{number}/export", json={}, headers=ACTION)))
        assert "holds a checkpoint already" in again["error"]
        assert client.post(f"{path}/999/export", json={}, headers=ACTION).status_code == 409
        shown = {each["id"]: each for each in client.get(f"/api/v1/recoveries/{recovery}").json()["checkpoints"]}
        assert shown[number]["exported"] == str(directory)
        repository.cancel(recovery, force=True)
        late = client.post(path, json={}, headers=ACTION)
        assert late.status_code == 409
        assert "CANCELLED" in late.json()["error"]


def _answered(command: dict[str, Any]) -> dict[str, Any] | None:
    return command if command["state"] in {"DONE", "REFUSED"} else None


def _refused(answer: httpx.Response) -> dict[str, Any] | None:
    """Whoever asks while it is still being written is given that very export."""
    return answer.json() if answer.status_code == 409 else None


def _until(condition: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


@pytest.fixture
def planned(page: Sample) -> Iterator[Sample]:
    """The page of a home whose drills.yaml has the plans nightly and new."""
    file = page.server.home / "drills.yaml"
    plan = "{job: nightly, spec: /s.yaml, checkpoints: /c}"
    file.write_text(f"drills: {{nightly: {plan}, new: {plan.replace('nightly', 'new')}}}")
    yield page
    file.unlink()


def test_drills_have_a_history_a_rate_and_an_age(planned: Sample) -> None:
    page = planned
    passed, failed, slow = DrillOutcome.PASSED, DrillOutcome.FAILED, DrillOutcome.TIMED_OUT
    with Repository.open(page.server.database_url) as repository:
        ids = sample.drilled(repository, "nightly", [passed, slow, DrillOutcome.COULD_NOT_RUN, passed, failed])
    answer = page.server.json("/api/v1/drills?plan=nightly")
    assert [each["drill"] for each in answer["drills"]] == list(reversed(ids))
    plan = next(each for each in answer["plans"] if each["plan"] == "nightly")
    assert plan["pass_rate"] == 0.5, "a drill that could not run counts for neither"
    assert plan["last_result"] == "FAILED"
    assert 86_000 < plan["age_s"] < 88_000
    drill = page.server.json(f"/api/v1/drills/{ids[-1]}")
    wrong = next(check for check in drill["checks"] if check["result"] == "FAILED")
    assert wrong["means"]
    assert wrong["do"]
    metrics = page.server.get("/metrics").text
    assert 'cdr_drills{job="nightly",plan="nightly",result="PASSED"} 2' in metrics
    assert 'cdr_drill_last_success_timestamp_seconds{job="nightly",plan="nightly"}' in metrics
    assert 'cdr_drill_rto_seconds{job="nightly",plan="nightly"}' in metrics


def test_a_running_drill_changes_neither_status_nor_metrics(planned: Sample) -> None:
    page = planned
    with Repository.open(page.server.database_url) as repository:
        sample.drilled(repository, "nightly", [DrillOutcome.FAILED] * 4, days_apart=0.01)
        before = page.server.get("/metrics").text
        repository.begin_drill("/c", DrillArgs(job="nightly", plan="nightly"))
    plan = next(each for each in page.server.json("/api/v1/drills")["plans"] if each["plan"] == "nightly")
    assert (plan["last_result"], plan["running"]) == ("FAILED", 1)
    drills = [line for line in before.splitlines() if line.startswith("cdr_drill_")]
    assert {name.partition("{")[0] for name in drills} >= {"cdr_drill_rto_seconds", "cdr_drill_is_stale"}
    assert [line for line in page.server.get("/metrics").text.splitlines() if line.startswith("cdr_drill_")] == drills


def test_every_plan_of_the_file_is_listed_and_a_deleted_one_raises_no_alarm(planned: Sample) -> None:
    page = planned
    with Repository.open(page.server.database_url) as repository:
        sample.drilled(repository, "gone", [DrillOutcome.FAILED])
        repository.end_drill(repository.begin_drill("/c", DrillArgs(job="j")).id, DrillOutcome.COULD_NOT_RUN)
    plans = {each["plan"]: each for each in page.server.json("/api/v1/drills")["plans"]}
    assert plans["new"]["sentence"] == "Drill plan new has no result yet."
    assert (plans["gone"]["is_planned"], plans["gone"]["is_stale"], plans[""]["is_stale"]) == (False, False, False)
    lines = page.server.get("/metrics").text.splitlines()
    stale = {line.split('plan="')[1].split('"')[0] for line in lines if line.startswith("cdr_drill_is_stale{")}
    assert stale == {"nightly", "new"}


def test_the_metrics_count_what_the_database_knows(page: Sample) -> None:
    answer = page.server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    records = page.server.json(f"/api/v1/recoveries/{page.done}")["records"]
    assert 'cdr_recoveries{state="DONE"} 1' in lines
    assert 'cdr_attempts{state="FENCED"} 1' in lines
    assert f"cdr_recovered_records_total {records}" in lines
    assert any(
        line.startswith(f'cdr_running_phase_age_seconds{{recovery="{page.wide}",phase="drain"}}') for line in lines
    )


def test_a_database_that_is_away_is_a_sentence_and_comes_back(page: Sample) -> None:
    database = page.server.home / "cdr.db"
    aside = database.with_name("aside.db")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing of it lies in another file
    database.rename(aside)
    try:
        for path in ("/api/v1/recoveries", f"/api/v1/recoveries/{page.done}", "/api/v1/drills", "/metrics"):
            answer = page.server.get(path)
            assert answer.status_code == 503, path
            assert "does not exist" in answer.json()["error"]
            assert "Traceback" not in answer.text
        assert page.server.get("/", headers={"Accept": "text/html"}).status_code == 200, "the shell then says it"
        upgrade(f"sqlite:///{database}")
        empty = page.server.json("/api/v1/recoveries")
        assert (empty["recoveries"], empty["total"]) == ([], 0)
        assert page.server.json("/api/v1/drills") == {"drills": [], "total": 0, "limit": 100, "offset": 0, "plans": []}
        database.unlink()
        database.write_text("this is no database, but someone's notes")
        broken = page.server.get("/api/v1/recoveries")
        assert broken.status_code == 503
        assert "not a SQLite database" in broken.json()["error"]
    finally:
        for left in (database, *database.parent.glob("cdr.db-*")):
            left.unlink(missing_ok=True)
        aside.rename(database)
    assert page.server.json("/api/v1/recoveries?limit=1")["total"] >= 4


def test_every_state_of_a_recovery_has_a_look(page: Sample) -> None:
    """A state that the page's script does not know would be shown as nothing special."""
    script = page.server.get("/static/format.js").text
    known = {str(state) for state in RecoveryState} - {"CREATED", "CANCELLED", "REPLACED"}
    assert all(f"{state}:" in script for state in known)
