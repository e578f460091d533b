"""Removes secrets from everything a task emits: its log, its errors, its result.

Drivers never print one. This is the second filter: the secrets of the environment and the settings are replaced by
stars wherever a line contains them, and Airflow's own masker gets them, too.
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
"""The location of a secret is not secret; cdr's settings declare which of them are."""


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
    """Return the redactor for a task with this environment."""
    found = [value for name, value in environment.items() if _is_secret(name)]
    databases = [value for name, value in environment.items() if name.endswith("__SQL_ALCHEMY_CONN")]
    found += [part for url in databases for part in _within(url)]
    try:
        for sourced in settings.load_sources(environment):
            if sourced.setting.secret:
                found += _within(sourced.text)
    except CdrError:
        pass  # the task itself reports what is wrong with the settings
    return Redactor(_spellings(found))


def tell_airflow(redactor: Redactor) -> None:
    """Make Airflow hide them as well: in rendered fields, tracebacks and logs of other code in this task."""
    from airflow.sdk.log import mask_secret

    for secret in redactor.secrets:
        mask_secret(secret)


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET_NAME.search(name)


def _within(url: str) -> list[str]:
    """Return the secret parts of a URL: its password, and a webhook's path."""
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
    """Return each as it is and as JSON writes it; the longest first, so that none is replaced in part."""
    spelt = {spelling for secret in secrets for spelling in (secret, json.dumps(secret)[1:-1])}
    return tuple(sorted((s for s in spelt if len(s) >= SHORTEST), key=len, reverse=True))
