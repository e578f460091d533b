"""Extra links of a phase's task: the recovery's page, its receipt, its Spark UI.

Airflow stores a link when the task ends. The operator stores them also when its driver starts, because the Spark UI
answers only while the phase runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE = "/cdr/recoveries/{recovery}"
RECEIPT = "/cdr/api/v1/recoveries/{recovery}/receipt"


def page_url(recovery: str) -> str:
    """Return the address of the recovery on the Recoveries page of this Airflow."""
    return _base_url() + PAGE.format(recovery=recovery)


def receipt_url(recovery: str) -> str:
    """Return the address of the recovery's receipt."""
    return _base_url() + RECEIPT.format(recovery=recovery)


@attrs.define()
class RecoveryLink(BaseOperatorLink):
    """The recovery's page."""

    name: ClassVar[str] = "Recovery"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        recovery = _recovery_of(operator)
        return page_url(recovery) if recovery else ""


@attrs.define()
class ReceiptLink(BaseOperatorLink):
    """The receipt, once there is one: the last phase writes it."""

    name: ClassVar[str] = "Receipt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        recovery = _recovery_of(operator)
        return receipt_url(recovery) if recovery and getattr(operator, "phase", "") == "commit" else ""


@attrs.define()
class SparkLink(BaseOperatorLink):
    """The Spark UI of the recovery's embedded server, or of the driver on a cluster; it answers while that lives."""

    name: ClassVar[str] = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return str(getattr(operator, "spark_ui", "") or "")


LINKS: tuple[BaseOperatorLink, ...] = (RecoveryLink(), ReceiptLink(), SparkLink())


def publish(operator: BaseOperator, ti: Any) -> None:
    """Store the links that are known already, under the keys that Airflow itself uses when the task ends."""
    for link in LINKS:
        if url := link.get_link(operator, ti_key=ti):
            ti.xcom_push(key=link.xcom_key, value=url)


def _recovery_of(operator: BaseOperator) -> str:
    return str(getattr(operator, "recovery", "") or "")


def _base_url() -> str:
    from airflow.sdk.configuration import conf

    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
