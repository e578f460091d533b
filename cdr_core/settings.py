"""Every setting in one place: name, type, default, unit and reason.

Environment ``CDR_*`` wins over ``cdr.toml``, which wins over the defaults below. A malformed value is refused when the
settings are loaded, not when a recovery reaches the line that uses it. The reference page is generated from
``SETTINGS``.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdr_core.addresses import canonical
from cdr_core.errors import SettingsRefused
from cdr_core.log import LogFormat

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_PAGE_SIZE = 32 * KIB
MINIMUM_PAGE_SIZE = 4 * KIB
"""Floor of the read page: checked also where filtering is off, so that switching it on later cannot fail on it."""

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}
_DURATION_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(text: str) -> int:
    """Bytes of ``64MiB``, ``100MB``, ``4096``."""
    match = _NUMBER_AND_UNIT.match(text)
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as 64MiB or 100MB")
    return int(float(match.group(1)) * unit)


def parse_duration(text: str) -> float:
    """Seconds of ``10s``, ``5m``, ``250ms``."""
    match = _NUMBER_AND_UNIT.match(text)
    unit = _DURATION_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a duration such as 10s or 5m")
    return float(match.group(1)) * unit


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number from 0")
    return int(text)


def _parse_retained(text: str) -> int:
    count = _parse_count(text)
    if count < 1:
        raise ValueError(f"{text!r}: a drain goes on from the last one, so at least 1 is kept")
    return count


def _parse_page_size(text: str) -> int:
    size = parse_size(text)
    if size < MINIMUM_PAGE_SIZE:
        raise ValueError(f"{text!r} is below the floor of {MINIMUM_PAGE_SIZE // KIB} KiB")
    return size


def _parse_positive_size(text: str) -> int:
    size = parse_size(text)
    if size <= 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return size


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return parse


def _parse_log_format(text: str) -> LogFormat:
    return LogFormat(_one_of(*LogFormat)(text))


_SPARK_MASTER = re.compile(r"^(connect|local(\[(\*|\d+)(,\d+)?\])?|spark://\S+)$")


def _parse_spark(text: str) -> str:
    if not _SPARK_MASTER.match(text):
        raise ValueError(f"{text!r} is not connect, local[N,F] or spark://HOST:PORT")
    return text


@dataclass(frozen=True, slots=True)
class SpillDir:
    """A tier: a directory and how many bytes it may hold; ``None`` = as many as fit."""

    path: str
    capacity: int | None


def _parse_spill_dirs(text: str) -> tuple[SpillDir, ...]:
    tiers = tuple(_parse_spill_dir(part.strip()) for part in text.split(",") if part.strip())
    paths = [os.path.normpath(tier.path) for tier in tiers]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise ValueError(f"{twice!r} is listed twice")
    return tiers


def _parse_spill_dir(text: str) -> SpillDir:
    path, colon, capacity = text.rpartition(":")
    if not colon:
        path, capacity = text, ""
    if not path.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path with an optional capacity, such as /mnt/fast:20GiB")
    return SpillDir(str(_path(path)), _parse_positive_size(capacity) if capacity else None)


_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _parse_dotted(text: str) -> str:
    if text and not _DOTTED.fullmatch(text):
        raise ValueError(f"{text!r} is not a dotted name such as package.module.Name")
    return text


def _parse_modules(text: str) -> tuple[str, ...]:
    return tuple(_parse_dotted(part.strip()) for part in text.split(",") if part.strip())


def _parse_webhook(text: str) -> str:
    if text and not re.match(r"https?://[^/\s]+", text):
        raise ValueError("it is not an http:// or https:// address")  # the text itself is a secret
    return text


def mask(url: str) -> str:
    """The URL with its password hidden."""
    hidden = re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&](?:password|passwd|pwd|sslpassword)=)[^&\s]*", r"\1***", hidden)


def mask_path(url: str) -> str:
    """The URL's scheme and host alone: a webhook's path is its password."""
    found = re.match(r"(https?://)(?:[^/@\s]*@)?([^/?#\s]+)", url)
    return f"{found.group(1)}{found.group(2)}/***" if found else ("***" if url else "")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its field in :class:`Settings`, how to read it, its default as text, and why it exists."""

    field: str
    parse: Callable[[str], Any]
    default: str
    unit: str
    reason: str
    secret: bool = False
    hide: Callable[[str], str] = mask

    @property
    def variable(self) -> str:
        return f"CDR_{self.field.upper()}"


def _path(text: str) -> Path:
    """A path that does not change its meaning with the current directory, in its one spelling: whose file it is, is
    told by its name.
    """
    path = Path(text).expanduser().absolute()
    return path.resolve() if ".." in path.parts else path


def _place(text: str) -> str:
    """A URI or a path, in one spelling: objects on S3 are ``s3://``, and a path has no scheme."""
    text = canonical(text)
    return text if "://" in text else str(_path(text))


def _parse_scratch(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return text


def default_home() -> Path:
    """``.cdr`` inside a checkout, so that every command run from it shares one state; else ``~/.cdr``."""
    root = Path(__file__).resolve().parent.parent
    return root / ".cdr" if (root / "pyproject.toml").is_file() else Path.home() / ".cdr"


SETTINGS: tuple[Setting, ...] = (
    Setting("home", _path, "", "path", "Everything cdr keeps on this host; .cdr in a checkout, else ~/.cdr"),
    Setting("database_url", str, "", "URL", "Metadata database; SQLite in the home by default", secret=True),
    Setting(
        "workspace",
        _place,
        "",
        "path or URI",
        "Where the phases of a recovery hand over to each other; home/workspace. s3:// where executors share no host",
    ),
    Setting(
        "workspace_shared",
        _parse_flag,
        "false",
        "",
        "The workspace is a mount that every host sees, so that an attempt may run on any of them; s3:// always is one",
    ),
    Setting(
        "scratch",
        _parse_scratch,
        "",
        "path",
        "Where executors keep what is on its way to or from s3://; else Spark's own directories, or the temporary one",
    ),
    Setting("spark", _parse_spark, "connect", "", "connect = one embedded server per recovery; else a Spark master"),
    Setting(
        "spark_cores",
        _parse_count,
        "0",
        "cores",
        "Cores of the embedded server, or of a standalone cluster, that a recovery may take; 0 = all",
    ),
    Setting("spark_idle", parse_duration, "60s", "duration", "The embedded server ends after this long without work"),
    Setting(
        "memory_budget",
        _parse_positive_size,
        "256MiB",
        "size",
        "Bytes a task may hold beyond its overhead; eight spill segments must fit",
    ),
    Setting(
        "spill_dirs",
        _parse_spill_dirs,
        "",
        "path:capacity,…",
        "Tiers of spilled data, filled in this order, a tmpfs first; empty = the workspace, without a limit. "
        "Refused with a shared workspace: another host could not read what lies there",
    ),
    Setting("page_size", _parse_page_size, "32KiB", "size", "The one page a task reads ambiguous channels through"),
    Setting("split_size", _parse_positive_size, "16MiB", "size", "Aimed at bytes of one unit of read and filter work"),
    Setting(
        "segment_size",
        _parse_positive_size,
        "4MiB",
        "size",
        "A spill segment is sealed beyond this; soft. The default is at most a 64th of the memory budget",
    ),
    Setting(
        "materialise",
        _parse_flag,
        "false",
        "",
        "Every record is copied into spill sets, also where the drain could read it in place from the source",
    ),
    Setting(
        "source_immutable",
        _parse_flag,
        "false",
        "",
        "The source is not changed or removed during a recovery: it is read in place also where it cannot be pinned",
    ),
    Setting(
        "drain_scratch",
        _parse_positive_size,
        "256MiB",
        "size",
        "Scratch disk of a drain's task, for what it fetched while its output stalls; when it is full, the task waits",
    ),
    Setting("spill_file_size", _parse_positive_size, "64MiB", "size", "A spill file is closed beyond this; soft"),
    Setting("output_file_size", _parse_positive_size, "512MiB", "size", "A drained file is closed beyond this; soft"),
    Setting(
        "recover_output_downstream",
        _parse_flag,
        "false",
        "",
        "In checkpoints that are written, output state becomes downstream input",
    ),
    Setting("checkpoint_during_recovery", _parse_flag, "true", "", "Recovery checkpoints while draining"),
    Setting(
        "checkpoint_interval",
        parse_duration,
        "0s",
        "duration",
        "A recovery checkpoint this often while draining; 0 = when asked",
    ),
    Setting("checkpoint_timeout", parse_duration, "10m", "duration", "A recovery checkpoint is given up after this"),
    Setting(
        "tolerable_failed_checkpoints",
        _parse_count,
        "3",
        "",
        "More failed recovery checkpoints in a row fail the attempt",
    ),
    Setting("retained_checkpoints", _parse_retained, "1", "", "How many complete recovery checkpoints are kept"),
    Setting(
        "commit",
        _one_of("at-end", "per-checkpoint"),
        "at-end",
        "",
        "One publication at the end, or one per recovery checkpoint while draining (tables only)",
    ),
    Setting(
        "table_raw",
        _parse_flag,
        "false",
        "",
        "Rows hold the bytes of every record in the column raw, not only where a type contains OPAQUE; new tables only",
    ),
    Setting(
        "show_samples",
        _parse_flag,
        "true",
        "",
        "Plan, log of read, and page show sample rows and the range of every field; off where values must not be seen",
    ),
    Setting(
        "export_root",
        _place,
        "",
        "path or URI",
        "Where the Recoveries page exports recovery checkpoints to, and nowhere else; home/exports",
    ),
    Setting(
        "pin_files",
        _parse_flag,
        "false",
        "",
        "A file beside the source checkpoint names the recovery that needs it; the source itself is never changed",
    ),
    Setting("approval", _parse_flag, "false", "", "A person approves in Airflow before commit"),
    Setting(
        "rto",
        parse_duration,
        "0s",
        "duration",
        "A run of cdr_recover that has not succeeded this long after its trigger is reported; 0 = never",
    ),
    Setting("notify_webhook", _parse_webhook, "", "URL", "Alerts are POSTed here as JSON", secret=True, hide=mask_path),
    Setting("notifier", _parse_dotted, "", "module.Class", "An Airflow notifier that gets the alerts, too"),
    Setting(
        "owner_modules",
        _parse_modules,
        "",
        "module,…",
        "Modules, with all below them, whose owner functions a job spec given through Airflow may name; empty = none",
    ),
    Setting("spark_conn", str, "", "connection id", "Airflow's spark connection that replaces CDR_SPARK in its tasks"),
    Setting("aws_conn", str, "", "connection id", "Airflow's aws connection that its tasks take S3 credentials from"),
    Setting("drills", _path, "", "path", "The plans of restore drills, a YAML file; home/drills.yaml"),
    Setting(
        "drill_scratch",
        _place,
        "",
        "path or URI",
        "Where drills put what they recover, removed after each; home/drills. s3:// where executors share no host",
    ),
    Setting("drill_cores", _parse_count, "0", "cores", "Cores that one drill's Spark may use; 0 = half of the host"),
    Setting(
        "drill_pool", str, "default_pool", "", "Airflow's pool that drills run in; its slots bound how many at once"
    ),
    Setting(
        "drill_flink",
        str,
        "",
        "command",
        "Restores the checkpoint whose directory follows as its last argument; exit status 0 = Flink took it",
    ),
    Setting(
        "sweep_after",
        parse_duration,
        "30d",
        "duration",
        "The plan and receipt files of a recovery that ended so long ago go too; the database keeps the receipt, and "
        "the receipt's ledger file stays",
    ),
    Setting(
        "s3_endpoint",
        str,
        "",
        "URL",
        "S3 endpoint, where it is not the one that the credentials' own configuration leads to",
    ),
    Setting(
        "log_level",
        _one_of("", "debug", "info", "warning", "error"),
        "",
        "",
        "debug, info, warning or error; empty = info, and warning on a terminal, where progress bars are drawn",
    ),
    Setting(
        "log_format", _parse_log_format, "text", "", "Lines of the log on stderr: text, or json for one object a line"
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, parsed. Fields are those of ``SETTINGS``."""

    home: Path
    database_url: str
    workspace: str
    workspace_shared: bool
    scratch: str
    spark: str
    spark_cores: int
    spark_idle: float
    memory_budget: int
    spill_dirs: tuple[SpillDir, ...]
    page_size: int
    split_size: int
    segment_size: int
    materialise: bool
    source_immutable: bool
    drain_scratch: int
    spill_file_size: int
    output_file_size: int
    recover_output_downstream: bool
    checkpoint_during_recovery: bool
    checkpoint_interval: float
    checkpoint_timeout: float
    tolerable_failed_checkpoints: int
    retained_checkpoints: int
    commit: str
    table_raw: bool
    show_samples: bool
    export_root: str
    pin_files: bool
    approval: bool
    rto: float
    notify_webhook: str
    notifier: str
    owner_modules: tuple[str, ...]
    spark_conn: str
    aws_conn: str
    drills: Path
    drill_scratch: str
    drill_cores: int
    drill_pool: str
    drill_flink: str
    sweep_after: float
    s3_endpoint: str
    log_level: str
    log_format: LogFormat

    @property
    def shares_workspace(self) -> bool:
        """Whether several hosts see the workspace."""
        return self.workspace_shared or "://" in self.workspace


DEFAULT = "default"
"""The source of a setting that has its default value."""

BUDGET_SEGMENTS = 64
"""A task holds a few segments at once, as rows several times over."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A setting as it is in force: its text and where that came from (environment, a file's path, default)."""

    setting: Setting
    text: str
    source: str

    @property
    def shown(self) -> str:
        """The text fit for a screen: what is secret in it is masked."""
        return self.setting.hide(self.text) if self.setting.secret else self.text


def load_sources(environment: Mapping[str, str] | None = None) -> tuple[Sourced, ...]:
    """Every setting's text with its source, unparsed; unknown names are refused."""
    env = os.environ if environment is None else environment
    file = _config_file(env)
    table = _read_table(file) if file else {}
    known = {s.field for s in SETTINGS}
    unknown = sorted(set(table) - known)
    if unknown:
        raise SettingsRefused(f"unknown setting {unknown[0]!r} in {file}", hint="cdr settings lists the known ones")
    return tuple(_derived(_source_of(s, env, table, str(file)), env, table) for s in SETTINGS)


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in force, or :class:`SettingsRefused` naming the first bad one and its source."""
    values: dict[str, Any] = {}
    for sourced in load_sources(environment):
        try:
            values[sourced.setting.field] = sourced.setting.parse(sourced.text)
        except ValueError as error:
            raise SettingsRefused(
                f"setting {sourced.setting.variable} from {sourced.source}: {error}",
                hint="correct it or unset it to use the default",
            ) from None
    return Settings(**values)


def _config_file(env: Mapping[str, str]) -> Path | None:
    if named := env.get("CDR_CONFIG"):
        path = Path(named)
        if not path.is_file():
            raise SettingsRefused(f"CDR_CONFIG names {named}, which is not a file", hint="unset it or create the file")
        return path
    home = Path(env["CDR_HOME"]) if env.get("CDR_HOME") else default_home()
    candidates = (Path.cwd() / "cdr.toml", home / "cdr.toml")
    return next((path for path in candidates if path.is_file()), None)


def _read_table(file: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsRefused(f"{file} is not readable TOML: {error}", hint="correct the file") from None
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in table.items()}


def _source_of(setting: Setting, env: Mapping[str, str], table: Mapping[str, str], file: str) -> Sourced:
    if setting.variable in env:
        return Sourced(setting, env[setting.variable], "environment")
    if setting.field in table:
        return Sourced(setting, table[setting.field], file)
    return Sourced(setting, setting.default, DEFAULT)


def _derived(sourced: Sourced, env: Mapping[str, str], table: Mapping[str, str]) -> Sourced:
    """Defaults that hang on other settings, spelled out so that ``cdr settings`` shows the real ones."""
    if sourced.setting.field == "segment_size" and sourced.source == DEFAULT:
        return replace(sourced, text=_segment_size(sourced, env, table))
    if sourced.text:
        return sourced
    home = env.get("CDR_HOME") or table.get("home") or str(default_home())
    home = str(_path(home))
    derived = {
        "home": home,
        "database_url": f"sqlite:///{home}/cdr.db",
        "workspace": f"{home}/workspace",
        "export_root": f"{home}/exports",
        "drills": f"{home}/drills.yaml",
        "drill_scratch": f"{home}/drills",
    }
    return replace(sourced, text=derived.get(sourced.setting.field, sourced.text))


def _segment_size(sourced: Sourced, env: Mapping[str, str], table: Mapping[str, str]) -> str:
    """A small budget has small segments; a budget that cannot be parsed is refused in its own place."""
    setting = next(each for each in SETTINGS if each.field == "memory_budget")
    with suppress(ValueError):
        share = setting.parse(_source_of(setting, env, table, "").text) // BUDGET_SEGMENTS
        if share < sourced.setting.parse(sourced.text):
            return str(max(share, 1))
    return sourced.text
