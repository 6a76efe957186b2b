"""Take the address of a place in S3 apart: `s3://bucket/prefix`, with `?endpoint=` and `region=` for other services."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from connector.errors import ConfigError

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")  # what needs no escape, in a URL or in DuckDB
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class S3Address:
    """A prefix of a bucket; `endpoint` is None for AWS."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    @classmethod
    def of(cls, uri: str) -> S3Address:
        """Return the address that a URI gives. Raises ConfigError if it has more parts, or fewer, or is unencrypted."""
        url = urlsplit(uri)
        given = dict(parse_qsl(url.query))
        bucket, prefix = url.netloc, url.path.strip("/")
        if "@" in bucket:
            raise ConfigError(
                "The address of a bucket has no room for keys: give them as AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, and take them out of the address."
            )
        if not (_NAME.fullmatch(bucket) and _PREFIX.fullmatch(prefix) and ".." not in prefix.split("/")):
            raise ConfigError(
                f"s3://{bucket}/{prefix} is not a place in S3; write s3://bucket/prefix, the prefix with letters, "
                "digits, _, ., =, - and / only."
            )
        if url.fragment or (other := given.keys() - {"endpoint", "region"}):
            named = url.fragment or ", ".join(sorted(other))
            raise ConfigError(
                f"The address s3://{bucket}/{prefix} takes endpoint and region behind ?, and not {named}."
            )
        endpoint = given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            _check_endpoint(endpoint)
        return cls(bucket, prefix, endpoint or None, given.get("region"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def identity(self) -> str:
        """Return what tells this place from all others."""
        return f"{self} {self.endpoint or ''}".strip()

    @property
    def is_plain_http(self) -> bool:
        """Return whether rows and keys go unencrypted."""
        return urlsplit(self.endpoint or "").scheme == "http"


def _check_endpoint(endpoint: str) -> None:
    """Raise ConfigError if this is no address of a service, or one to which rows and keys must not go unencrypted."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https"):
        raise ConfigError(f"The endpoint {endpoint} is no address such as https://minio.example:9000.")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    if url.scheme == "http" and url.hostname not in _LOOPBACK and not allowed:
        raise ConfigError(
            f"The endpoint {endpoint} is not encrypted, so that everybody on the way could read the rows; use https, "
            "or set AWS_ALLOW_HTTP=true if the network is yours."
        )
