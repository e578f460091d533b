"""The shell: one sentence and the right exit code for everything that can be wrong, and nothing left behind."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.inline import WithoutSpark
from tests.support.shell import Shell


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".cdr"


def left_behind(home: Path) -> list[str]:
    """Recoveries and workspaces, of which a refused request must leave none."""
    found = [str(path) for path in home.glob("workspace/*")] + [str(path) for path in home.glob("spark/*")]
    if (home / "cdr.db").exists():
        with sqlite3.connect(home / "cdr.db") as connection:
            found += [row[0] for row in connection.execute("select id from recovery")]
    return found


BAD_REQUESTS = {
    "a checkpoint that is not there": ({"checkpoint": "/nowhere/chk-1"}, 5, "is not a checkpoint"),
    "a metadata file that is none": ({"checkpoint": "{broken}"}, 5, "_metadata"),
    "a spec that is not there": ({"spec": "/nowhere/spec.yaml"}, 3, "cannot be read"),
    "an operator that is not there": ({"spec": "{other_operator}"}, 3, "no operator 'quick'"),
    "no parallelism": ({"parallelism": "many"}, 3, "'many' is not a number"),
    "too much parallelism": ({"parallelism": "4000"}, 3, "max parallelism"),
    "a target below a file": ({"to": "parquet:{file}/out"}, 3, "cannot be written"),
    "a target where nothing can be made": ({"to": "parquet:/proc/cdr/out"}, 3, "cannot be written"),
    "an operator named twice": ({"parallelism": "slow=2,slow=3"}, 3, "names an operator twice"),
    "a target of no kind": ({"to": "kafka:topic"}, 3, "no sink 'kafka'"),
    "a target without a place": ({"to": "parquet:"}, 3, "names no place"),
    "another way with damage": ({"on-corrupt": "shrug"}, 3, "'shrug' is not one of"),
    "an interval that is none": ({"checkpoint-interval": "soon"}, 3, "'soon' is not a duration"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_one_sentence_an_exit_code_and_leaves_nothing(
    shell: Shell, home: Path, tmp_path: Path, fixture_checkpoint: FixtureCheckpoints, case: str
) -> None:
    changed, code, sentence = BAD_REQUESTS[case]
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    places = {name: tmp_path / name for name in ("broken", "file", "other_operator")}
    places["broken"].mkdir()
    (places["broken"] / "_metadata").write_bytes((checkpoint.path / "_metadata").read_bytes()[:-40])
    places["file"].touch()
    places["other_operator"].write_text(checkpoint.spec.read_text().replace("slow", "quick"))
    good = {
        "checkpoint": str(checkpoint.path),
        "spec": str(checkpoint.spec),
        "parallelism": "2",
        "to": f"parquet:{tmp_path}/out",
    }
    wished = {**good, **{name: value.format(**places) for name, value in changed.items()}}
    options = [part for name, value in wished.items() if name != "checkpoint" for part in (f"--{name}", value)]
    exit_code, out, err = shell("recover", wished["checkpoint"], *options)
    assert exit_code == code
    assert out == ""
    assert err.startswith("cdr: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert left_behind(home) == []
    assert not (tmp_path / "out").exists()


def test_a_broken_setting_names_itself_and_its_source(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_PAGE_SIZE", "1kb")
    code, _, err = shell("list")
    assert code == 3
    assert "CDR_PAGE_SIZE from environment" in err


def test_a_database_that_is_away_is_worth_a_retry_and_shows_no_password(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_DATABASE_URL", "postgresql+psycopg://cdr:hunter2@127.0.0.1:1/cdr")
    code, _, err = shell("list")
    assert code == 1
    assert err.count("\n") == 1
    assert "hunter2" not in err


def test_an_unknown_recovery_is_refused(shell: Shell) -> None:
    for command in (("status", "r-nope"), ("receipt", "r-nope"), ("phase", "read", "r-nope")):
        code, _, err = shell(*command)
        assert code == 3
        assert "r-nope" in err


@pytest.mark.parametrize(
    "arguments", [("recover",), ("frobnicate",), ("status",), ("phase", "sing", "r-1"), ("list", "--limit", "x")]
)
def test_a_command_line_that_cannot_be_understood_exits_64(shell: Shell, arguments: tuple[str, ...]) -> None:
    code, _, err = shell(*arguments)
    assert code == 64
    assert err.startswith("cdr: ")


def test_inspect_counts_what_flink_counts(shell: Shell, fixture_checkpoint: FixtureCheckpoints) -> None:
    for name in ("a_p3_thr0", "a_p3_thr1mb", "g_p7_thr0"):
        checkpoint = fixture_checkpoint(name, 2)
        code, out, _ = shell("inspect", str(checkpoint.path), "--spec", str(checkpoint.spec), "--json")
        value = json.loads(out)
        channels = checkpoint.oracle.channels.values()
        assert code == 0
        assert value["version"] == 6
        assert value["totals"]["bytes"] == sum(c.input_bytes + c.output_bytes for c in channels)
        assert value["totals"]["buffers"] == sum(c.input_buffers + c.output_buffers for c in channels)
        assert value["totals"]["elements"] == len(checkpoint.oracle.elements)
        assert value["totals"]["records"] == sum(1 for _ in checkpoint.oracle.records)


def test_inspect_goes_on_after_a_bad_checkpoint(
    shell: Shell, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    good = str(fixture_checkpoint("a_p3_thr0", 2).path)
    code, out, _ = shell("inspect", good, str(tmp_path / "none"), good, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 5
    assert ["error" in line for line in lines] == [False, True, False]


def test_inspect_shows_a_person_where_the_bytes_are(shell: Shell, fixture_checkpoint: FixtureCheckpoints) -> None:
    _, out, _ = shell("inspect", str(fixture_checkpoint("a_p3_thr0", 2).path))
    assert "slow: parallelism 3" in out
    assert "█" in out


def test_create_only_makes_the_row_and_nothing_runs(
    shell: Shell, home: Path, tmp_path: Path, fixture_checkpoint: FixtureCheckpoints
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = ["--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{tmp_path}/out"]
    code, out, _ = shell("recover", str(checkpoint.path), *arguments, "--create-only", "--json")
    created = json.loads(out)
    assert code == 0
    assert left_behind(home) == [created["recovery"]]
    _, listed, _ = shell("list", "--json")
    assert json.loads(listed)["recovery"] == created["recovery"]
    _, status, _ = shell("status", created["recovery"], "--json")
    value = json.loads(status)
    assert (value["state"], value["epoch"]) == ("CREATED", 0)
    assert [phase["name"] for phase in value["phases"]] == ["read", "filter", "spill", "drain", "commit"]
    code, _, err = shell("receipt", created["recovery"])
    assert code == 3
    assert "no receipt" in err


def test_settings_show_each_with_its_source(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_SPARK_IDLE", "5m")
    code, out, _ = shell("settings", "--json")
    values = {line["name"]: line for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert (values["CDR_SPARK_IDLE"]["value"], values["CDR_SPARK_IDLE"]["source"]) == ("5m", "environment")
    assert values["CDR_COMMIT"]["source"] == "default"


def test_help_answers_without_loading_spark_or_kernels() -> None:
    program = "import sys; sys.argv=['cdr','--help']\nfrom cdr_core.cli import main\n"
    program += "try: main.run()\nexcept SystemExit: pass\n"
    program += "heavy = {'pyspark', 'numba', 'pyarrow', 'sqlalchemy'} & set(sys.modules)\nassert not heavy, heavy\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "recover" in done.stdout


def test_what_plans_and_creates_a_recovery_loads_no_pandas() -> None:
    """Seconds of a busy core, in the first task of every run: Arrow loads it with the first array, so none is made."""
    modules = "cdr_core.recovery.recovery_request, cdr_core.channels.record_counts"
    program = f"import sys\nimport {modules}\nassert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("name", "value"), [("CDR_WORKSPACE", "/proc/cdr")])
def test_a_setting_that_cannot_work_is_refused_before_anything_is_made(
    shell: Shell,
    home: Path,
    tmp_path: Path,
    fixture_checkpoint: FixtureCheckpoints,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = ["--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{tmp_path}/out"]
    code, _, err = shell("recover", str(checkpoint.path), *arguments)
    assert code == 3
    assert name in err
    assert left_behind(home) == []


def test_a_recovery_that_failed_is_resumed_by_its_id_and_ends_once(
    shell: Shell, tmp_path: Path, fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdr_core.runtime.executor_backend.SparkWorkers", lambda settings: WithoutSpark())
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = ["--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{tmp_path}/out"]
    _, out, _ = shell("recover", str(checkpoint.path), *arguments, "--create-only", "--json")
    recovery = json.loads(out)["recovery"]
    monkeypatch.setenv("CDR_FAULTS", "drain.before-done=raise")
    assert shell("resume", recovery)[0] == 1
    monkeypatch.delenv("CDR_FAULTS")
    for _ in range(2):
        code, out, _ = shell("resume", recovery, "--json")
        value = json.loads(out.splitlines()[-1])
        assert (code, value["state"], value["records"]) == (0, "DONE", 1878)
    assert len(output.rows(tmp_path / "out")) == 1878
    assert shell("resume", "r-nobody")[0] == 3
