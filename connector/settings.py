"""Validate the configuration of the source once, when it is read; docs/settings.md lists its keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from connector.durations import parse_duration
from connector.errors import ConfigError
from connector.ledger import STATUSES
from connector.models import Import
from connector.nearest import suggest_known
from connector.scope import Part
from connector.text import composed
from connector.transform.privacy import Privacy
from connector.window import Window as Window

TemplateName = Annotated[str, AfterValidator(composed)]


class Selection(BaseModel):
    """The imports that a backfill reads again: every given condition must hold; empty means everything.

    Imports are requested by `slugs`: the returned import is the selected one, even if its slug is spelled differently.
    `part` is the part of a shard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    slugs: frozenset[str] = frozenset()
    template: TemplateName | None = None
    part: Part | None = None

    def contains(self, import_: Import) -> bool:
        if self.part is not None and not self.part.contains(import_.template_slug, import_.slug):
            return False
        return self.template is None or self.template in import_.template_names


@dataclass(frozen=True, slots=True)
class RunScope:
    """The scope of a run. `force` reads up-to-date imports too; `allow_mass_delete` waives the limit once.

    `shard` is the number of the shard and the count of shards, which read their parts concurrently.
    """

    mode: str = "incremental"
    window: Window = field(default_factory=Window)
    selection: Selection = field(default_factory=Selection)
    force: bool = False
    recheck_days: int | None = None
    allow_mass_delete: bool = False
    shard: tuple[int, int] | None = None


_SECRET = (SecretStr, SecretStr | None)


def _one_or_more(given: object) -> object:
    return (given,) if isinstance(given, str) else given


def _switch_or_some(given: object) -> object:
    """Parse the text of an environment variable: true, false, or templates as JSON."""
    if not isinstance(given, str):
        return given
    if given.strip().lower() in ("true", "false"):
        return given.strip().lower() == "true"
    try:
        return json.loads(given)
    except ValueError:
        return (given,)


def _duration(given: object) -> object:
    return parse_duration(given) if isinstance(given, str) else given


def is_loopback(host: str) -> bool:
    """Return whether `host` is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "its host"
    except ValueError:
        return "its host"


class Settings(BaseModel):
    """`[sources.importer]`, as in docs/settings.md."""

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
    templates: Annotated[tuple[TemplateName, ...] | None, BeforeValidator(_one_or_more)] = None
    exclude_templates: Annotated[tuple[TemplateName, ...] | None, BeforeValidator(_one_or_more)] = None
    max_run_time: Annotated[timedelta | None, BeforeValidator(_duration)] = None
    views: bool = True
    hints: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    privacy: Mapping[str, Any] = Field(default_factory=dict)
    privacy_key: SecretStr | None = None
    history: Annotated[bool | tuple[TemplateName, ...], BeforeValidator(_switch_or_some)] = False
    allow_plain_http: bool = False
    allow_experimental: bool = False
    group_readable: bool = False
    _http_client: Callable[[], Any] | None = PrivateAttr(None)

    @field_validator("base_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or value.rstrip("/").endswith(":/"):
            raise ValueError("must be an http:// or https:// address")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _token_crosses_no_network_in_plain_text(self) -> Settings:
        """Refuse to send the token over plain http to another host, unless that is allowed."""
        if self.base_url.startswith("http://") and not self.allow_plain_http:
            host = _host(self.base_url)
            if not is_loopback(host):
                raise ValueError(
                    f"base_url is an http:// address, so anyone on the network path to {host} could read the access "
                    "token and the data; use https://, or set allow_plain_http = true if the connection is encrypted "
                    "by other means"
                )
        return self

    @field_validator("access_token")
    @classmethod
    def _token_is_sendable(cls, value: SecretStr) -> SecretStr:
        token = value.get_secret_value()
        if not token or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
            raise ValueError("must be one printable word without blanks")
        return value

    @field_validator("hints", mode="before")
    @classmethod
    def _no_setting_among_hints(cls, value: Any) -> Any:
        """Explain a setting in the section of a table's hints, where a line appended to the file ends up."""
        for table, columns in value.items() if isinstance(value, Mapping) else ():
            for column, kind in columns.items() if isinstance(columns, Mapping) else ():
                if column in cls.model_fields and not isinstance(kind, str):
                    raise ValueError(
                        f"hints.{table}.{column} is no hint; {column} is a setting of [sources.importer]: move it "
                        "above the line [sources.importer.hints…]"
                    )
        return value

    @field_validator("hints")
    @classmethod
    def _hints_are_types(cls, value: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
        from connector.transform.written import parse_hint

        for table, columns in value.items():
            for column, kind in columns.items():
                try:
                    parse_hint(kind)
                except ValueError as error:
                    raise ValueError(f"hints.{table}.{column} is not valid: {error}") from None
        return value

    @field_validator("max_run_time")
    @classmethod
    def _takes_time(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value <= timedelta(0):
            raise ValueError("it has to be more than zero")
        return value

    @field_validator("status")
    @classmethod
    def _status_is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in STATUSES:
            raise ValueError(f"the service has no such status; {suggest_known(value, STATUSES).rstrip('.')}")
        return value

    @field_validator("templates")
    @classmethod
    def _some_template(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value == ():
            raise ValueError("name a template, or remove the setting to read all of them")
        return value

    @model_validator(mode="after")
    def _no_template_is_in_and_out(self) -> Settings:
        if both := sorted(set(self.templates or ()) & set(self.exclude_templates or ())):
            raise ValueError(f"templates and exclude_templates both name {both[0]!r}; remove it from one of them")
        return self

    @model_validator(mode="after")
    def _something_to_write(self) -> Settings:
        if not (self.raw or self.typed):
            raise ValueError("raw and typed are both false, so nothing would be written; set one of them to true")
        return self

    def includes(self, names: Set[str]) -> bool:
        """Return whether the imports of a template are read, by its slug and names; nothing for those without one."""
        return (self.templates is None or not names.isdisjoint(self.templates)) and names.isdisjoint(
            self.exclude_templates or ()
        )

    def keeps_history_of(self, template_slug: str | None, template_names: Collection[str]) -> bool:
        """Return whether the versions of the rows of a template are kept; they are versions of typed rows."""
        if not self.typed:
            return False
        if isinstance(self.history, bool):
            return self.history
        return not {template_slug, *template_names}.isdisjoint(self.history)

    @model_validator(mode="after")
    def _rules_can_be_read(self) -> Settings:
        self.protection.of_metadata  # noqa: B018
        return self

    @property
    def http_client(self) -> Callable[[], Any] | None:
        """Return the factory of the httpx client to use for the service; None for the default transport."""
        return self._http_client

    def with_client(self, http_client: Callable[[], Any] | None) -> Settings:
        """Return the same settings with a client, which cannot be configured in a file."""
        made = self.model_copy()
        made._http_client = http_client
        return made

    @cached_property
    def protection(self) -> Privacy:
        """Return the rules of `privacy`, with the key of their hashes."""
        key = self.privacy_key.get_secret_value().strip() if self.privacy_key is not None else None
        return Privacy.parse(self.privacy, key)

    @classmethod
    def load(cls, **values: Any) -> Settings:
        """Validate the values as `load_from` does, without knowing their places."""
        return cls.load_from(lambda _: None, values)

    @classmethod
    def load_from(cls, location_of: Callable[[str], str | None], values: Mapping[str, Any]) -> Settings:
        """Validate the values. Raises ConfigError with one sentence.

        It names each wrong key, its place, and its value unless it is secret. `location_of` returns where the value of
        a key was set: a file or an environment variable.
        """
        try:
            return cls(**{k: v for k, v in values.items() if v is not None})
        except ValidationError as error:
            _refuse(error, values, location_of)


def shown_address(url: str) -> str:
    """Return scheme, host and path of a URL, without what may hold a secret; '' if it has no host."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path}" if host else ""


def _named(message: str) -> str:
    """Return the key at the start of the message of a rule on several keys, '' if there is none."""
    first = re.split("[. ]", message.removeprefix("Value error, "), maxsplit=1)[0]
    return first if first in Settings.model_fields else ""


def _refuse(error: ValidationError, values: Mapping[str, Any], location_of: Callable[[str], str | None]) -> NoReturn:
    parts = []
    for each in error.errors(include_input=False, include_url=False):
        name = ".".join(str(part) for part in each["loc"]) or _named(each["msg"]) or "settings"
        key = str(each["loc"][0]) if each["loc"] else _named(each["msg"])
        value = values.get(key)
        secret = key not in Settings.model_fields or Settings.model_fields[key].annotation in _SECRET
        if key == "base_url":
            value = shown_address(str(value))
        shown = f" = {value!r}" if isinstance(value, str | int | float) and not secret else ""
        place = f" (set in {found})" if key and (found := location_of(key)) else ""
        parts.append(f"{name}{shown}{place}: {each['msg'].removeprefix('Value error, ')}")
    raise ConfigError(f"Configuration under [sources.importer] is not valid: {'; '.join(parts)}.") from None
