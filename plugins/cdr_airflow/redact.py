"""Secrets out of everything a task says: its log, its errors, its result.

Drivers are told never to print one. This is the second lock: what the environment and the settings hold as a secret is
replaced by stars wherever a line contains it, and Airflow's own masker is told of it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from cdr_core import settings
from cdr_core.errors import CdrError
from cdr_core.settings import mask

STARS = "***"
SHORTEST = 5
"""Characters of the shortest secret that is looked for: hiding every ``a`` would hide everything."""

_SECRET_NAME = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|PRIVATE_KEY|FERNET_KEY|CREDENTIAL", re.IGNORECASE)
_NO_SECRET_NAME = re.compile(r"_(FILE|PATH|DIR|URI|EXPIRATION)$|^CDR_", re.IGNORECASE)
"""Where a secret lies is none; our own settings say by themselves which of them are."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces the known secrets, and the password of any URL."""

    secrets: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, STARS)
        # Most texts are a word or two, and a page has ten thousands of them.
        return mask(text) if "://" in text or "=" in text else text


def redactor_for(environment: Mapping[str, str]) -> Redactor:
    """What must not be said by a task with this environment."""
    found = [value for name, value in environment.items() if _is_secret(name)]
    databases = [value for name, value in environment.items() if name.endswith("__SQL_ALCHEMY_CONN")]
    found += [part for url in databases for part in _within(url)]
    try:
        for sourced in settings.load_sources(environment):
            if sourced.setting.secret:
                found += _within(sourced.text)
    except CdrError:
        pass  # the task itself says what is wrong with the settings
    return Redactor(_spellings(found))


def tell_airflow(redactor: Redactor) -> None:
    """Let Airflow hide them as well: in rendered fields, tracebacks and what other code logs in this task."""
    from airflow.sdk.log import mask_secret

    for secret in redactor.secrets:
        mask_secret(secret)


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET_NAME.search(name)


def _within(url: str) -> list[str]:
    """The secret parts of a URL: its password, and a webhook's path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return [url]
    secret = [parts.password or "", unquote(parts.password or "")]
    secret += re.findall(r"(?i)(?:password|passwd|pwd|sslpassword)=([^&\s]*)", parts.query)
    if parts.scheme in {"http", "https"}:
        secret += [url, parts.path.strip("/"), parts.query, *(part for part in parts.path.split("/") if len(part) > 12)]
    return secret


def _spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each as it is and as JSON writes it; the longest first, so that none is left in half."""
    spelt = {spelling for secret in secrets for spelling in (secret, json.dumps(secret)[1:-1])}
    return tuple(sorted((s for s in spelt if len(s) >= SHORTEST), key=len, reverse=True))
