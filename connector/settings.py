"""Configuration of the source, validated once at the edge (CONTRACT §1); everything behind it trusts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from connector.errors import ConfigError

HINT_PATTERN = r"^(date|timestamp|text|bigint|double|bool|json|decimal\(\s*\d+\s*,\s*\d+\s*\))$"
MAX_PER_PAGE = 100  # interface, Limits


class Window(BaseModel):
    """Half-open interval `[since, until)` on an import's `updated_at`; both ends optional, in UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: datetime | None = None
    until: datetime | None = None

    @field_validator("since", "until", mode="after")
    @classmethod
    def _utc(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def contains(self, instant: datetime) -> bool:
        return (self.since is None or instant >= self.since) and (self.until is None or instant < self.until)


class Selection(BaseModel):
    """What a backfill re-reads (CONTRACT §2): every given condition must hold; empty means everything.

    Imports are asked for by `slugs`: whatever the service answers is meant, though it may spell the slug otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    slugs: frozenset[str] = frozenset()
    template: str | None = None

    def contains(self, template_slug: str | None, template_name: str | None) -> bool:
        return self.template is None or self.template in (template_slug, template_name)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run was asked for. `force` re-reads what is up to date; `allow_mass_delete` waives the limit once."""

    mode: str = "incremental"
    window: Window = field(default_factory=Window)
    selection: Selection = field(default_factory=Selection)
    force: bool = False
    recheck_days: int | None = None
    allow_mass_delete: bool = False


class Settings(BaseModel):
    """`[sources.importer]`, as in CONTRACT §1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str
    access_token: SecretStr
    max_concurrency: int = Field(default=8, ge=1, le=256)
    requests_per_second: float | None = Field(default=None, gt=0)
    batch_rows: int = Field(default=500_000, ge=1)
    deletes: Literal["mirror", "keep"] = "mirror"
    reconcile: Literal["fail", "warn", "off"] = "fail"
    mass_delete_limit: float = Field(default=0.5, ge=0, le=1)
    raw: bool = True
    typed: bool = True
    status: str | None = None
    hints: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or value.rstrip("/").endswith(":/"):
            raise ValueError("must be an http:// or https:// address")
        return value.rstrip("/")

    @field_validator("access_token")
    @classmethod
    def _token_is_sendable(cls, value: SecretStr) -> SecretStr:
        token = value.get_secret_value()
        if not token or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
            raise ValueError("must be one printable word without blanks")
        return value

    @field_validator("hints")
    @classmethod
    def _hints_are_types(cls, value: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
        import re

        for table, columns in value.items():
            for column, kind in columns.items():
                if not re.match(HINT_PATTERN, kind):
                    raise ValueError(
                        f"hints.{table}.{column} is {kind!r}; it must be date, timestamp, decimal(p,s), text, "
                        "bigint, double, bool or json"
                    )
        return value

    @model_validator(mode="after")
    def _something_to_write(self) -> Settings:
        if not (self.raw or self.typed):
            raise ValueError("raw and typed are both false, so there would be nothing to write")
        return self

    @classmethod
    def load(cls, **values: Any) -> Settings:
        """Raises ConfigError with one sentence that names each wrong key; values of secrets are not shown."""
        try:
            return cls(**{k: v for k, v in values.items() if v is not None})
        except ValidationError as error:
            _refuse(error)


def _refuse(error: ValidationError) -> NoReturn:
    parts = [
        f"{'.'.join(str(p) for p in e['loc']) or 'settings'}: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors(include_input=False, include_url=False)
    ]
    raise ConfigError(f"Configuration under [sources.importer] is not valid: {'; '.join(parts)}.") from None
