"""The trigger form of a recovery: its fields, their help texts, and its own checks.

The patterns are JSON Schema. Airflow's API checks them for every client, its own form among them, before a run exists;
it then shows its own message, which names the field first and quotes the schema after that. The patterns catch
malformed values; a value that does not fit the checkpoint is refused by the first task with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow.sdk import Param

from cdr_airflow.demo_checkpoint import PARALLELISM, shipped
from cdr_core import settings
from cdr_core.errors import CdrError
from cdr_core.targets import PATTERN as TARGET_PATTERN

SOURCE, TARGET, BEHAVIOUR = "What to recover", "Target and parallelism", "Behaviour"

PLACE = r"(/|file:///)"
OBJECTS = r"s3://[^/\s]+/"
CHECKPOINT_PATTERN = rf"^({PLACE}|{OBJECTS})\S.*$"
NUMBER = r"[1-9][0-9]{0,4}"
PARALLELISM_PATTERN = rf"^(same|{NUMBER}|[^=,]+={NUMBER}(,[^=,]+={NUMBER})*)$"
DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?\s?(ms|s|m|min|h|d)$"

# No code spans in any of these: the form draws their boxes over the lines above and below.
CHECKPOINT_HELP = """Directory of an unaligned Flink checkpoint, the one that holds **_metadata**: a path that Airflow's
workers see, or **s3://**. It is only ever read."""

SPEC_HELP = """Path or address of a YAML file, or the YAML itself:
```yaml
job: my-job
exchanges:
  - name: main
    upstream: {operator: gen, partition: 0}
    downstream: {operator: slow, gate: 0}
    partitioner: hash
    record: TUPLE<LONG, INT, LONG, STRING>
    key: [f0]
```
**cdr spec CHECKPOINT** drafts one. An owner function of a custom partitioner must be in a module that
**CDR_OWNER_MODULES** lists."""

PARALLELISM_HELP = """**2** for every operator on an exchange (chained ones follow), **slow=2,gen=3** by operator name,
**same** to keep what the checkpoint has."""

TARGET_HELP = """**parquet:DIR** (also on **s3://**), **iceberg:CATALOG/db.table** (a catalog that pyiceberg's
configuration names), **paimon:WAREHOUSE/db.table** (also on **s3://**): a table of the records. **checkpoint:DIR**: a
checkpoint that Flink restores at the new parallelism. **none:** dry run, writes nothing. The same checkpoint
and target are one recovery: triggering it again continues it, or returns its stored result. **Start over** replaces
one that has published nothing."""

INTERVAL_HELP = """How often the recovery itself is checkpointed while it drains, such as **10s**: if the
drain crashes, it resumes from the latest one. Empty: as in **CDR_CHECKPOINT_INTERVAL** (default: off). One can be
triggered at any time on the recovery's page or by **cdr checkpoint**."""

RTO_HELP = """Recovery time objective, such as **15m**, counted from the trigger. A run that has not succeeded by then
is reported; the run continues. Leave empty to use **CDR_RTO**."""

CORRUPT_HELP = """What to do with channel state that does not decode. *Quarantine* recovers each channel up to its first
bad element and quarantines the rest: the sound part is published, the receipt lists what is missing, and the last task
is marked failed so that a user looks at it."""


ORDER_HELP = """Exchanges to drain before the others, by their names in the job spec and in this order. Where every
recovery checkpoint is published, they are published before the others, too. Empty: in the order of their inputs."""

TRUST_HELP = """Recover by a key that nothing in the checkpoint proves. Such a key is refused otherwise: a wrong one
gives records to subtasks that do not own them. The receipt keeps saying that the key is unproven."""

REPLACE_HELP = """If this checkpoint and target have a recovery that has published nothing, replace it by a new one with
the options of this form. Use it after a cancel, a mistyped parallelism, or a failure that other options avoid. After a
publication it is refused."""


@dataclass(frozen=True, slots=True)
class Example:
    """The initial values of the form: the demo's checkpoint if it is unpacked, otherwise none."""

    checkpoint: str | None
    spec: str | None
    parallelism: str
    to: str | None


NO_EXAMPLE = Example(None, None, "same", None)


def example() -> Example:
    """Return the shipped checkpoint, if ``CDR_HOME/demo`` contains it; the first task reports settings that do not
    load.
    """
    try:
        demo = shipped(settings.load().home)
    except CdrError:
        return NO_EXAMPLE
    if not demo.is_unpacked:
        return NO_EXAMPLE
    return Example(str(demo.checkpoint), str(demo.spec), PARALLELISM, f"parquet:{demo.folder / 'output'}")


def recovery_params(shown: Example) -> dict[str, Param]:
    """Return the params of ``cdr_recover`` under the names that users' scripts rely on."""
    return {
        "checkpoint": Param(
            shown.checkpoint,
            type="string",
            title="Checkpoint",
            description_md=CHECKPOINT_HELP,
            examples=["/checkpoints/7d0c…/chk-42", "s3://flink/checkpoints/7d0c…/chk-42"],
            pattern=CHECKPOINT_PATTERN,
            section=SOURCE,
        ),
        "spec": Param(
            shown.spec,
            type="string",
            format="multiline",
            title="Job spec",
            description_md=SPEC_HELP,
            minLength=1,
            section=SOURCE,
        ),
        "parallelism": Param(
            shown.parallelism,
            type=["string", "integer"],
            title="New parallelism",
            description_md=PARALLELISM_HELP,
            examples=["2", "slow=2,gen=3", "same"],
            pattern=PARALLELISM_PATTERN,
            minimum=1,
            maximum=32768,
            section=TARGET,
        ),
        "to": Param(
            shown.to,
            type="string",
            title="Target",
            description_md=TARGET_HELP,
            examples=[
                "parquet:/recovered/my-job",
                "iceberg:lake/recovered.my_job",
                "paimon:/warehouse/recovered.my_job",
                "checkpoint:/checkpoints/recovered/my-job",
            ],
            pattern=TARGET_PATTERN,
            section=TARGET,
        ),
        "checkpoint_interval": Param(
            None,
            type=["null", "string"],
            title="Checkpoint interval",
            description_md=INTERVAL_HELP,
            examples=["10s", "1m"],
            pattern=DURATION_PATTERN,
            section=BEHAVIOUR,
        ),
        "rto": Param(
            None,
            type=["null", "string"],
            title="Recovery time objective",
            description_md=RTO_HELP,
            examples=["15m", "1h"],
            pattern=DURATION_PATTERN,
            section=BEHAVIOUR,
        ),
        "on_corrupt": Param(
            "fail",
            type="string",
            title="On corrupt data",
            description_md=CORRUPT_HELP,
            enum=["fail", "quarantine"],
            values_display={"fail": "Fail: publish nothing", "quarantine": "Quarantine: publish what is sound"},
            section=BEHAVIOUR,
        ),
        "drain_order": Param(
            None,
            type=["null", "string"],
            title="Drain order",
            description_md=ORDER_HELP,
            examples=["orders,payments"],
            section=BEHAVIOUR,
        ),
        "trust_key": Param(False, type="boolean", title="Trust the key", description_md=TRUST_HELP, section=BEHAVIOUR),
        "replace": Param(False, type="boolean", title="Start over", description_md=REPLACE_HELP, section=BEHAVIOUR),
    }


REQUEST = {
    **{name: f"{{{{ params.{name} }}}}" for name in ("checkpoint", "spec", "parallelism", "to", "on_corrupt")},
    "checkpoint_interval": "{{ params.checkpoint_interval or '' }}",
    "drain_order": "{{ params.drain_order or '' }}",
    "trust_key": "{{ params.trust_key }}",
    "replace": "{{ run_id if params.replace else '' }}",
}
"""The request as templates over the params; an empty interval means the setting's. A start-over has its run's id, so
that a retried or cleared task finds the recovery that its run made.
"""
