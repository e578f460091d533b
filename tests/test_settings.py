"""Settings: who wins, what is refused, and that the reference page tells the truth."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import SettingsRefused
from cdr_core.settings import (
    GIB,
    KIB,
    MIB,
    SETTINGS,
    Settings,
    SpillDir,
    load,
    load_sources,
    mask,
    parse_duration,
    parse_size,
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with nothing in it but a home that holds no cdr.toml."""
    return {"CDR_HOME": str(tmp_path / "home")}


def write_toml(environment: dict[str, str], text: str) -> Path:
    file = Path(environment["CDR_HOME"]) / "cdr.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def source_of(environment: dict[str, str], field: str) -> tuple[str, str]:
    return next((s.text, s.source) for s in load_sources(environment) if s.setting.field == field)


def refusal(environment: dict[str, str]) -> str:
    with pytest.raises(SettingsRefused) as refused:
        load(environment)
    assert refused.value.exit_code == 3
    return str(refused.value)


# --- who wins -------------------------------------------------------------------------------------------------------


def test_environment_wins_over_file_and_file_over_default(environment: dict[str, str]) -> None:
    assert source_of(environment, "page_size") == ("32KiB", "default")
    file = write_toml(environment, 'page_size = "64KiB"\n')
    assert source_of(environment, "page_size") == ("64KiB", str(file))
    assert load(environment).page_size == 64 * KIB
    environment["CDR_PAGE_SIZE"] = "128KiB"
    assert source_of(environment, "page_size") == ("128KiB", "environment")
    assert load(environment).page_size == 128 * KIB


def test_a_file_in_the_current_folder_wins_over_the_one_in_the_home(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(environment, "spark_cores = 1\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "cdr.toml").write_text("spark_cores = 2\n")
    monkeypatch.chdir(here)
    assert load(environment).spark_cores == 2


def test_a_named_file_wins_over_every_other_and_has_to_exist(environment: dict[str, str], tmp_path: Path) -> None:
    write_toml(environment, "spark_cores = 1\n")
    named = tmp_path / "named.toml"
    named.write_text("spark_cores = 3\n")
    assert load(environment | {"CDR_CONFIG": str(named)}).spark_cores == 3
    assert str(tmp_path / "gone.toml") in refusal(environment | {"CDR_CONFIG": str(tmp_path / "gone.toml")})


def test_a_file_may_use_the_types_of_toml(environment: dict[str, str]) -> None:
    write_toml(environment, "spark_cores = 2\napproval = true\npage_size = 8192\n")
    settings = load(environment)
    assert (settings.spark_cores, settings.approval, settings.page_size) == (2, True, 8192)


def test_every_default_is_a_valid_value_of_its_setting(environment: dict[str, str]) -> None:
    settings = load(environment)
    home = Path(environment["CDR_HOME"])
    assert settings.home == home
    assert settings.database_url == f"sqlite:///{home}/cdr.db"
    assert settings.workspace == f"{home}/workspace"
    assert [field.name for field in fields(Settings)] == [setting.field for setting in SETTINGS]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("{}//ws/", "{}/ws"), ("{}/x/../ws", "{}/ws"), ("file://{}/ws", "{}/ws"), ("file://{}//ws", "{}/ws")],
)
def test_a_local_place_has_one_spelling(environment: dict[str, str], tmp_path: Path, given: str, kept: str) -> None:
    """Files are told apart by their names: one place under two names would be swept as somebody else's."""
    settings = load({**environment, "CDR_WORKSPACE": given.format(tmp_path)})
    assert settings.workspace == kept.format(tmp_path)


def test_a_home_named_in_the_file_moves_what_hangs_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cdr.toml").write_text(f'home = "{tmp_path}/elsewhere"\n')
    monkeypatch.chdir(tmp_path)
    settings = load({})
    assert settings.home == tmp_path / "elsewhere"
    assert settings.database_url == f"sqlite:///{tmp_path}/elsewhere/cdr.db"


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spark", "yarn-cluster"),
        ("spark", "local[many]"),
        ("scratch", "tmp/scratch"),
        ("workspace_shared", "maybe"),
        ("spark_cores", "-1"),
        ("spark_cores", "two"),
        ("spark_idle", "soon"),
        ("memory_budget", "0"),
        ("memory_budget", "-1MiB"),
        ("spill_dirs", "relative:1GiB"),
        ("spill_dirs", "/fast:lots"),
        ("spill_dirs", "/fast:0"),
        ("spill_dirs", "/fast:1GiB,/slow,/fast/"),
        ("page_size", "32 kibi"),
        ("page_size", "4095"),
        ("split_size", "0"),
        ("segment_size", "1XB"),
        ("spill_file_size", "big"),
        ("recover_output_downstream", "maybe"),
        ("checkpoint_during_recovery", "2"),
        ("checkpoint_interval", "10 parsecs"),
        ("checkpoint_timeout", "-1s"),
        ("tolerable_failed_checkpoints", "1.5"),
        ("commit", "sometimes"),
        ("approval", "yes please"),
        ("rto", "soon"),
        ("notify_webhook", "hooks.example/T0"),
        ("notifier", "my notifier"),
        ("owner_modules", "jobs.owners,../evil"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True], ids=["environment", "file"])
def test_a_bad_value_is_one_sentence_with_its_name_and_source(
    environment: dict[str, str], field: str, value: str, by_file: bool
) -> None:
    source = "environment"
    if by_file:
        source = str(write_toml(environment, f'{field} = "{value}"\n'))
    else:
        environment[f"CDR_{field.upper()}"] = value
    sentence = refusal(environment)
    assert sentence.startswith(f"setting CDR_{field.upper()} from {source}: ")
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize("flag", ["recover_output_downstream", "checkpoint_during_recovery"])
def test_the_floor_of_the_page_holds_also_where_nothing_uses_it(environment: dict[str, str], flag: str) -> None:
    environment |= {f"CDR_{flag.upper()}": "off", "CDR_PAGE_SIZE": "4095"}
    assert "floor of 4 KiB" in refusal(environment)
    assert load(environment | {"CDR_PAGE_SIZE": "4096"}).page_size == 4096


def test_an_unknown_name_in_the_file_is_refused_with_the_file(environment: dict[str, str]) -> None:
    file = write_toml(environment, 'page_sise = "64KiB"\n')
    sentence = refusal(environment)
    assert "'page_sise'" in sentence
    assert str(file) in sentence


def test_a_file_that_is_no_toml_is_refused_with_its_path(environment: dict[str, str]) -> None:
    assert str(write_toml(environment, "page_size: 64KiB\n")) in refusal(environment)


# --- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://cdr:s3cret@db:5432/cdr", "postgresql://cdr:***@db:5432/cdr"),
        ("postgresql+psycopg://cdr:s3:cr/et@db/cdr", "postgresql+psycopg://cdr:***@db/cdr"),
        ("postgresql://cdr@db/cdr", "postgresql://cdr@db/cdr"),
        ("sqlite:////var/lib/cdr.db", "sqlite:////var/lib/cdr.db"),
    ],
)
def test_a_password_is_masked_and_nothing_else(url: str, shown: str) -> None:
    assert mask(url) == shown


def test_the_password_of_the_database_never_reaches_a_screen(environment: dict[str, str]) -> None:
    environment["CDR_DATABASE_URL"] = "postgresql://cdr:s3cret@db/cdr"
    (database,) = (s for s in load_sources(environment) if s.setting.field == "database_url")
    assert "s3cret" not in database.shown
    assert load(environment).database_url == "postgresql://cdr:s3cret@db/cdr"


def test_the_path_of_a_webhook_is_its_password(environment: dict[str, str]) -> None:
    environment["CDR_NOTIFY_WEBHOOK"] = "https://user:geheim@hooks.example/T0/s3cret?key=s3cret"
    (webhook,) = (s for s in load_sources(environment) if s.setting.field == "notify_webhook")
    assert webhook.shown == "https://hooks.example/***"
    environment["CDR_NOTIFY_WEBHOOK"] = "s3cret"
    assert "s3cret" not in refusal(environment)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 64 * KIB), ("64 kib", 64 * KIB), ("100MB", 10**8), ("1.5GiB", 3 * GIB // 2), ("0", 0)],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("5m", 300), ("250ms", 0.25), ("1h", 3600), ("7", 7)])
def test_a_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "MiB", "1e6", "-1", "1 0", "١٢x"])
def test_what_is_no_number_with_a_unit_is_neither_size_nor_duration(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("", ()),
        ("/shm:64MiB,/disk", (SpillDir("/shm", 64 * MIB), SpillDir("/disk", None))),
        (" /a:1GiB , ", (SpillDir("/a", GIB),)),
    ],
)
def test_spill_tiers_are_paths_with_an_optional_capacity(environment: dict[str, str], text: str, tiers: Any) -> None:
    assert load(environment | {"CDR_SPILL_DIRS": text}).spill_dirs == tiers


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_reference_page_is_what_the_settings_say() -> None:
    script = "import settings_reference as page; print(page.difference(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / ".make", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""


def test_the_reference_page_names_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    for setting in SETTINGS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{setting.variable}` ")]
        assert setting.default in row
        assert setting.reason in row


def test_a_password_with_an_at_sign_is_masked_whole() -> None:
    assert mask("postgresql://cdr:p@ss@host/db") == "postgresql://cdr:***@host/db"


def test_a_count_that_is_none_says_what_one_is() -> None:
    with pytest.raises(SettingsRefused, match="'two' is not a whole number"):
        load({"CDR_SPARK_CORES": "two"})


def test_a_password_among_the_parameters_is_masked() -> None:
    assert mask("postgresql://h/x?user=u&password=geheim&a=b") == "postgresql://h/x?user=u&password=***&a=b"


@pytest.mark.parametrize("variable", ["CDR_WORKSPACE", "CDR_EXPORT_ROOT"])
@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "s3p"])
def test_a_place_on_s3_has_one_scheme(environment: dict[str, str], variable: str, scheme: str) -> None:
    environment[variable] = f"{scheme}://bucket/place"
    assert getattr(load(environment), variable.removeprefix("CDR_").lower()) == "s3://bucket/place"
