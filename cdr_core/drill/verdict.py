"""What came of a drill: a function of facts, and for every check what a failure means and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from cdr_core.audit.receipt import verdict_text
from cdr_core.drill.duration_format import beside, spoken
from cdr_core.errors import CdrError, Corrupt, GivenUp, Partial, PlanRefused, SpecRefused, Unbalanced
from cdr_core.metadata import DrillCheck, DrillOutcome

RECOVERED, BALANCED, RTO, RPO = "recovered", "balanced", "rto", "rpo"
ROWS, VERIFY, SQL, FLINK_RESTORE = "rows", "verify", "sql", "flink_restore"
NO_FLINK = "No Flink is configured; CDR_DRILL_FLINK names the command that restores a checkpoint."


class CheckResult(StrEnum):
    """NOT_RUN = unknown; NOT_CONFIGURED = not asked for, or nothing is configured that could answer."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_RUN = "NOT_RUN"
    NOT_CONFIGURED = "NOT_CONFIGURED"


@dataclass(frozen=True, slots=True)
class Advice:
    """What it means that a check failed, and what to do about it."""

    means: str
    do: str


ADVICE = MappingProxyType(
    {
        RECOVERED: Advice(
            "This checkpoint cannot be recovered as planned: in an emergency you would stand where this drill does.",
            "Read the sentence, correct the spec or the plan, or look at the checkpoint with cdr inspect; "
            "cdr recover --on-corrupt quarantine saves what is sound.",
        ),
        BALANCED: Advice(
            "Records were lost, doubled or changed on the way, or only a part could be recovered.",
            "Keep the checkpoint, run cdr verify on its receipt, and do not rely on this checkpoint.",
        ),
        ROWS: Advice(
            "The recovered table does not hold as many rows as the checkpoint has records in flight.",
            "Keep the checkpoint and run cdr verify; this should never happen, so please report it.",
        ),
        VERIFY: Advice(
            "A second reader, which shares no code with the recovery, finds another result.",
            "Keep the checkpoint and its receipt and compare them with cdr verify.",
        ),
        SQL: Advice(
            "The data was recovered, but is not what the plan's query expects of it.",
            "Run the query on a recovery of this checkpoint to a table that stays, and look at the rows.",
        ),
        FLINK_RESTORE: Advice(
            "Flink did not restore the re-written checkpoint.",
            "Read the command's output in the log, and run it by hand on a recovery to checkpoint:DIR.",
        ),
        RTO: Advice(
            "Recovery works, but takes longer than the plan allows.",
            "Look at the phases' times on the recovery's page; give it more cores, or widen rto to what is true.",
        ),
        RPO: Advice(
            "The newest checkpoint is older than the plan allows: a failure now would lose that much time.",
            "Look at why the job's checkpoints do not complete (back-pressure, time-outs), or widen max_age.",
        ),
    }
)

COULD_NOT_RUN = Advice(
    "The drill itself could not be carried out, so it says nothing about the checkpoint.",
    "Remove the cause that the sentence names and start the drill again.",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``kind`` is the key of its advice where ``name`` is a query's own."""

    name: str
    result: CheckResult
    sentence: str
    kind: str = ""

    def stored(self) -> DrillCheck:
        """Return it with the advice that belongs to its result."""
        advice = _advice(self)
        means, do = (advice.means, advice.do) if advice else ("", "")
        return DrillCheck(self.name, str(self.result), self.sentence, means, do)


def _advice(check: Check) -> Advice | None:
    if check.result is CheckResult.FAILED:
        return ADVICE[check.kind or check.name]
    return COULD_NOT_RUN if check.result is CheckResult.NOT_RUN else None


class FailureKind(StrEnum):
    """Whom a failed recovery blames: what was to be recovered, what it should have been done with, or its length."""

    CHECKPOINT = "CHECKPOINT"
    BALANCE = "BALANCE"
    SURROUNDINGS = "SURROUNDINGS"
    GIVEN_UP = "GIVEN_UP"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    sentence: str

    def to_json(self) -> dict[str, str]:
        return {"kind": str(self.kind), "sentence": self.sentence}


def failure_of(error: CdrError) -> Failure:
    """A failed recovery's error, with whom it blames."""
    return Failure(blame(type(error)), str(error))


def blame(kind: type[CdrError]) -> FailureKind:
    """Bytes that do not decode, and a spec or parallelism that does not fit them, would stop a recovery in earnest as
    well. What else is refused or fails (settings, storage, database, Spark, a user's cancel) blames no checkpoint.
    """
    if issubclass(kind, Unbalanced | Partial):
        return FailureKind.BALANCE
    if issubclass(kind, Corrupt | SpecRefused | PlanRefused):
        return FailureKind.CHECKPOINT
    if issubclass(kind, GivenUp):
        return FailureKind.GIVEN_UP
    return FailureKind.SURROUNDINGS


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a verdict depends on.

    ``modified`` = when the checkpoint was written; ``recovered_at`` ``None`` = the recovery did not end well, and
    ``failure`` says why; ``balance`` is the receipt's verdict, and ``proven`` whether its keys are; ``looked`` are the
    checks of the recovered rows; ``given_up`` = it was stopped because it took too long.
    """

    started_at: datetime
    modified: datetime | None = None
    recovered_at: datetime | None = None
    balance: str | None = None
    proven: bool = True
    failure: Failure | None = None
    given_up: bool = False
    rto_limit_s: float | None = None
    rpo_limit_s: float | None = None
    looked: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``sentence`` says in one line why it did not pass; ``None`` where it did."""

    result: DrillOutcome
    checks: tuple[Check, ...]
    rto_s: float | None
    rpo_s: float | None

    @property
    def sentence(self) -> str | None:
        decisive = _decisive(self.result)
        for check in self.checks:
            if decisive is not None and check.result is decisive:
                return f"{check.name}: {check.sentence}"
        return None


def _decisive(result: DrillOutcome) -> CheckResult | None:
    if result is DrillOutcome.PASSED:
        return None
    return CheckResult.NOT_RUN if result is DrillOutcome.COULD_NOT_RUN else CheckResult.FAILED


def judge(facts: Facts) -> Verdict:
    """A failed check fails the drill; a missed RTO alone is TIMED_OUT; what could not be looked at is COULD_NOT_RUN."""
    rto_s = _seconds(facts.started_at, facts.recovered_at)
    rpo_s = None if facts.modified is None else max(_seconds(facts.modified, facts.started_at) or 0.0, 0.0)
    checks = (_recovered(facts), _balanced(facts), *facts.looked, _rto(facts, rto_s), _rpo(facts, rpo_s))
    return Verdict(_result(checks), checks, rto_s, rpo_s)


def _result(checks: tuple[Check, ...]) -> DrillOutcome:
    failed = {check.name for check in checks if check.result is CheckResult.FAILED}
    if failed - {RTO}:
        return DrillOutcome.FAILED
    if failed:
        return DrillOutcome.TIMED_OUT
    if any(check.result is CheckResult.NOT_RUN for check in checks):
        return DrillOutcome.COULD_NOT_RUN
    return DrillOutcome.PASSED


def _recovered(facts: Facts) -> Check:
    if facts.recovered_at is not None:
        return Check(RECOVERED, CheckResult.PASSED, "All five phases ended.")
    failure = facts.failure or Failure(FailureKind.SURROUNDINGS, "The recovery was stopped before it ended.")
    blamed = failure.kind is FailureKind.CHECKPOINT
    return Check(RECOVERED, CheckResult.FAILED if blamed else CheckResult.NOT_RUN, failure.sentence)


def _balanced(facts: Facts) -> Check:
    if facts.failure is not None and facts.failure.kind is FailureKind.BALANCE:
        return Check(BALANCED, CheckResult.FAILED, facts.failure.sentence)
    if facts.recovered_at is None or facts.balance is None:
        return Check(BALANCED, CheckResult.NOT_RUN, "There is no receipt to look at.")
    if facts.balance != "balanced":
        return Check(BALANCED, CheckResult.FAILED, f"The receipt says {facts.balance}.")
    came_out = "Every record of the checkpoint came out once, in order."
    if facts.proven:
        return Check(BALANCED, CheckResult.PASSED, came_out)
    return Check(
        BALANCED,
        CheckResult.PASSED,
        f"{came_out} The receipt says {verdict_text(facts.balance, proven=False)}: nothing in the checkpoint proves "
        "the key, so a real recovery needs --trust-key where the key decides.",
    )


def _rto(facts: Facts, rto_s: float | None) -> Check:
    limit = facts.rto_limit_s
    if rto_s is None:
        if facts.given_up:
            return Check(RTO, CheckResult.FAILED, "The recovery had not ended when the drill was given up.")
        return Check(RTO, CheckResult.NOT_RUN, "The recovery did not end, so its time is not known.")
    if limit is None:
        return Check(RTO, CheckResult.NOT_CONFIGURED, f"It took {spoken(rto_s)}; the plan sets no limit.")
    took, allowed = beside(rto_s, limit)
    if rto_s > limit:
        return Check(RTO, CheckResult.FAILED, f"It took {took}, the limit is {allowed}.")
    return Check(RTO, CheckResult.PASSED, f"It took {took} of {allowed}.")


def _rpo(facts: Facts, rpo_s: float | None) -> Check:
    limit = facts.rpo_limit_s
    if rpo_s is None:
        return Check(RPO, CheckResult.NOT_RUN, "No checkpoint was chosen, so its age is not known.")
    if limit is None:
        return Check(
            RPO, CheckResult.NOT_CONFIGURED, f"The checkpoint was {spoken(rpo_s)} old; the plan sets no limit."
        )
    old, allowed = beside(rpo_s, limit)
    result = CheckResult.FAILED if rpo_s > limit else CheckResult.PASSED
    return Check(RPO, result, f"The checkpoint was {old} old, the limit is {allowed}.")


def _seconds(since: datetime, until: datetime | None) -> float | None:
    return None if until is None else round((until - since).total_seconds(), 3)
