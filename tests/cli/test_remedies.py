"""Every remedy that an error prints works: commands are run as they are printed, options exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cdr_core import settings as settings_module
from cdr_core.cli import main as shell
from cdr_core.cli.remedy import remedy_command
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.errors import CdrError, CorruptChannelState, Refused, Replaced, StartOver, UnprovenKey
from cdr_core.metadata import Repository
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.damage import Damaged
from tests.support.postgres import running_postgres

ROOT = Path(__file__).resolve().parents[2]
WHOLE = re.compile(r"^cdr: run: (cdr .+)$", re.MULTILINE)
"""A command on a line of its own, which may have any character in it."""
PRINTED = re.compile(r"(?:run: |with: |by: |finish: )(cdr [^.;,\n]+)")
"""One inside a sentence."""


QUARANTINE = "--on-corrupt=quarantine --replace"


class Shell:
    """``cdr`` in this process; keeps what was printed last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._patch.setattr(sys, "argv", ["cdr", *words])
        with pytest.raises(SystemExit) as ended:
            shell.run()
        self.out, self.err = self._capture.readouterr()
        return int(ended.value.code or 0)

    @property
    def printed(self) -> list[str]:
        """The last command that the last error names."""
        return shlex.split((WHOLE.findall(self.err) or PRINTED.findall(self.err))[-1])[1:]


@pytest.fixture
def cdr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    inline.in_shell(monkeypatch)
    return Shell(monkeypatch, capsys)


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


def _words(checkpoint: FixtureCheckpoint, to: Path, *more: str) -> tuple[str, ...]:
    given = ("--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{to}")
    return ("recover", str(checkpoint.path), *given, *more)


def _created(cdr: Shell, checkpoint: FixtureCheckpoint, to: Path) -> str:
    assert cdr(*_words(checkpoint, to, "--create-only", "--json")) == 0
    return str(json.loads(cdr.out)["recovery"])


@pytest.mark.parametrize(
    "failing",
    [("status", "r-none"), ("resume", "r-none"), ("cancel", "r-none"), ("drill", "show", "d-none")],
    ids=lambda words: "-".join(words),
)
def test_what_is_not_there_is_listed(cdr: Shell, failing: tuple[str, ...]) -> None:
    assert cdr(*failing) == 3
    assert cdr(*cdr.printed) == 0


@pytest.mark.postgres
def test_an_older_shared_database_is_upgraded(cdr: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import command

    upgrade = command.upgrade
    with running_postgres() as server:
        monkeypatch.setenv("CDR_DATABASE_URL", server.create())
        with monkeypatch.context() as patched:
            patched.setattr(command, "upgrade", lambda config, _: upgrade(config, "0006"))
            assert cdr("db", "upgrade") == 0
        assert cdr("list") == 3
        assert cdr.printed == ["db", "upgrade"]
        assert cdr(*cdr.printed) == 0
        assert cdr("list") == 0


def test_a_phase_too_early_names_the_one_before(cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")
    assert cdr("phase", "filter", recovery) == 3
    assert cdr.printed == ["phase", "read", recovery]
    assert cdr(*cdr.printed) == 0
    assert cdr("phase", "filter", recovery) == 0


@pytest.mark.parametrize("command", ["receipt", "verify"])
def test_without_a_receipt_the_status_is_shown(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path, command: str
) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")
    assert cdr(command, recovery) == 3
    assert cdr(*cdr.printed) == 0
    assert recovery in cdr.out


def test_what_may_be_published_is_resumed_not_cancelled(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")

    def refuse(*_: Any) -> None:
        raise Refused("the target is away")

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", refuse)
        assert cdr("resume", recovery) == 3
    assert cdr("cancel", recovery) == 3
    assert cdr.printed == ["resume", recovery]
    assert cdr(*cdr.printed) == 0


def test_a_cancelled_recovery_is_started_over(cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")
    assert cdr("cancel", recovery) == 0
    assert cdr("resume", recovery) == 3
    assert cdr.printed == ["resume", recovery, "--replace"]
    assert cdr(*cdr.printed) == 0
    assert f"{recovery}-g2: DONE, balanced" in cdr.out


@pytest.mark.parametrize("command", ["resume", "cancel"])
def test_a_replaced_recovery_names_its_successor(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path, command: str
) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")
    assert cdr(*_words(checkpoint, tmp_path / "out", "--replace", "--create-only")) == 0
    assert cdr(command, recovery) == 3
    assert cdr.printed == [command, f"{recovery}-g2"]
    assert cdr(*cdr.printed) == 0


def test_a_replaced_recovery_is_started_over_by_its_successors_id(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    recovery = _created(cdr, checkpoint, tmp_path / "out")
    assert cdr(*_words(checkpoint, tmp_path / "out", "--replace", "--create-only")) == 0
    assert cdr("resume", recovery, "--replace") == Replaced.exit_code
    assert f"recovery {recovery} was replaced by {recovery}-g2; run: cdr resume {recovery}-g2 --replace" in cdr.err
    assert cdr.printed == ["resume", f"{recovery}-g2", "--replace"]
    assert cdr(*cdr.printed) == 0
    assert f"{recovery}-g3: DONE, balanced" in cdr.out


def test_a_published_recovery_is_not_started_over_and_its_result_is_shown(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    assert cdr(*_words(checkpoint, tmp_path / "out")) == 0
    assert cdr(*_words(checkpoint, tmp_path / "out", "--replace")) == 3
    assert "manifest-1.json" in cdr.err
    assert cdr.printed[0] == "status"
    assert cdr(*cdr.printed) == 0


@pytest.mark.parametrize("command", ["resume", "phase"])
def test_damage_in_a_recovery_by_id_names_a_command_by_id(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path, command: str
) -> None:
    damaged = Damaged(checkpoint, tmp_path / "chk-2")
    damaged.flip((1, 1), damaged.frames((1, 1))[20], 6)
    copy = FixtureCheckpoint(checkpoint.name, damaged.folder, checkpoint.spec)
    recovery = _created(cdr, copy, tmp_path / "out")
    assert cdr(*(("resume", recovery) if command == "resume" else ("phase", "read", recovery))) == 5
    assert cdr.printed == ["resume", recovery, "--on-corrupt=quarantine", "--replace"]
    assert cdr(*cdr.printed) == 6
    assert cdr.printed == ["receipt", f"{recovery}-g2"]
    assert cdr(*cdr.printed) == 0


def test_a_recovery_of_an_unknown_version_is_started_over(
    cdr: Shell, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    from sqlalchemy import create_engine, text

    recovery = _created(cdr, checkpoint, tmp_path / "out")
    with create_engine(settings_module.load().database_url).begin() as connection:
        connection.execute(text("UPDATE recovery SET cdr_version = '0.0.9'"))
    assert cdr(*_words(checkpoint, tmp_path / "out")) == 3
    assert "was created by cdr 0.0.9" in cdr.err
    assert "finish it with cdr 0.0.9" in cdr.err
    assert cdr(*cdr.printed) == 0
    with Repository.open(settings_module.load().database_url) as repository:
        assert str(repository.recovery(f"{recovery}-g2").state) == "DONE"


@pytest.mark.parametrize(
    ("error", "arguments", "command"),
    [
        (StartOver("x"), ["recover", "a b", "--to", "t"], "cdr recover 'a b' --to t --replace"),
        (StartOver("x"), ["recover", "c", "--replace"], None),
        (UnprovenKey("x"), ["recover", "c"], "cdr recover c --trust-key"),
        (
            CorruptChannelState("x"),
            ["recover", "c", "--on-corrupt", "fail"],
            "cdr recover c --on-corrupt=quarantine --replace",
        ),
        (
            CorruptChannelState("x"),
            ["recover", "c", "--on-corrupt=fail"],
            "cdr recover c --on-corrupt=quarantine --replace",
        ),
        (UnprovenKey("x"), ["resume", "r-1"], "cdr resume r-1 --trust-key --replace"),
        (CorruptChannelState("x"), ["inspect", "c"], None),
        (CdrError("x"), ["recover", "c"], None),
    ],
)
def test_the_command_that_helps(error: CdrError, arguments: list[str], command: str | None) -> None:
    assert remedy_command(error, arguments) == command


def _texts() -> Iterator[tuple[str, str]]:
    """Every text in the code, f-strings with a word for each value."""
    for folder in ("cdr_core", "plugins", "dags"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.name}:{node.lineno}", node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                    yield f"{path.name}:{node.lineno}", "".join(map(str, parts))


def _commands() -> dict[str, set[str]]:
    """Every command, such as ``drill list``, with its options."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for each, child in command.commands.items():
                walk(child, f"{name} {each}".strip())
        found[name] = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }

    walk(typer.main.get_command(shell.app), "")
    return found


def _named(text: str) -> Iterator[str]:
    yield from re.findall(r"(?:run: |with: |by: |finish: |use: )cdr ((?:drill |db )?[a-z-]+)", text)


def test_every_command_that_a_text_names_exists() -> None:
    commands = _commands()
    named = {(place, name) for place, text in _texts() for name in _named(text)}
    assert len(named) > 15
    wrong = {(place, name) for place, name in named if name not in commands and name.split()[0] not in commands}
    assert not wrong


def test_every_option_that_a_hint_names_exists() -> None:
    options = set().union(*_commands().values())
    named: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "cdr_core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
                named |= {(path.name, option) for text in texts for option in re.findall(r"--[a-z][a-z-]+", str(text))}
    assert len(named) > 5
    assert not {(place, option) for place, option in named if option not in options}
