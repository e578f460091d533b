"""Addresses of files and objects, as text: which schemes are known, and the one spelling of each address."""

from __future__ import annotations

S3_SCHEMES = ("s3", "s3a", "s3p", "s3n")
"""The same objects: Flink's users choose a client (Hadoop's, Presto's) by the scheme."""

SCHEMES = ("file", *S3_SCHEMES)
"""Of URIs that can be read; a plain path is a file."""


def canonical(uri: str) -> str:
    """Return a local path without its scheme (Flink prints ``file:/data``), and ``s3://`` for every S3 scheme."""
    if uri.startswith("file:/"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    scheme, separator, rest = uri.partition("://")
    return f"s3://{rest}" if separator and scheme in S3_SCHEMES else uri
