"""The dlt source: `pipeline.run(importer_source())` is a complete and correct sync.

The resources `imports` and `records` share one run. The selected resource that ends last adds the row of `sync_runs`,
in the same package as everything else. Changes of the source by the user are checked before anything is read, so that
they cannot break the guarantees.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import dlt
from dlt.common.configuration.exceptions import (
    ConfigFieldMissingException,
    ConfigValueCannotBeCoercedException,
    ContextDefaultCannotBeCreated,
)
from dlt.common.configuration.resolve import inject_section, resolve_configuration
from dlt.common.configuration.specs.config_section_context import ConfigSectionContext
from dlt.common.reflection.spec import spec_from_signature
from dlt.common.typing import TSecretStrValue
from dlt.extract import DltResource, DltSource

from connector.config_keys import location_of, refuse_other_pipeline, refuse_unknown_keys
from connector.dlt_config import SOURCE, active_pipeline
from connector.errors import ConfigError, MissingSettingError
from connector.load.dlt_bridge import (
    Marker,
    adopt_rebuilt_tables,
    check_failed_jobs_raise,
    check_only_source,
    current_load_id,
    hold_until_loaded,
    package_state,
)
from connector.load.pending_packages import guard_loads, note_origin, origin_of
from connector.load.source_changes import refuse_changes
from connector.load.table_rows import TableRows
from connector.load.working_directory import check_folders
from connector.run.ports import Ports
from connector.run.session import RunSession
from connector.scope import Scope
from connector.settings import RunScope, Settings, Window
from connector.warehouse import Warehouse
from connector.warehouse.connection import VERSIONS
from connector.warehouse.destination import prepare_for_loading
from connector.warehouse.lock import acquire_sole_writer, check_lock_held

RESOURCES = ("imports", "records")
SECRETS = ("access_token", "privacy_key")
_JSON_AS_TEXT = "when merging arrow schema with dlt schema"

guard_loads()


@dlt.source(name="importer", section="importer")
def importer_source(
    base_url: str = dlt.config.value,
    access_token: TSecretStrValue = dlt.secrets.value,
    max_concurrency: int | None = None,
    requests_per_second: float | None = None,
    batch_rows: int | None = None,
    deletes: str | None = None,
    reconcile: str | None = None,
    mass_delete_limit: float | None = None,
    raw: bool | None = None,
    typed: bool | None = None,
    status: str | None = None,
    templates: list[str] | None = None,
    exclude_templates: list[str] | None = None,
    max_run_time: str | None = None,
    views: bool | None = None,
    hints: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    privacy_key: TSecretStrValue | None = None,
    history: Any = None,
    allow_plain_http: bool | None = None,
    allow_experimental: bool | None = None,
    group_readable: bool | None = None,
    updated_at: Any = None,
    http_client: Any = None,
) -> Iterable[DltResource]:
    """Return the source of imports and records, to be given to `pipeline.run`.

    An argument that is not given is taken from dlt's configuration, section `[sources.importer]`; docs/settings.md has
    the defaults and the limits of each.

    Args:
        base_url: Address of the service, without `/api/v1`.
        access_token: Bearer token of the service.
        max_concurrency: Maximum number of concurrent requests.
        requests_per_second: Maximum request rate.
        batch_rows: Records per load package; only `connector.sync` and the command load several packages.
        deletes: "mirror" deletes rows that the service no longer has; "keep" marks them in `_deleted_at`.
        reconcile: The effect of a completed import whose number of records differs from its `row_count`: "fail" makes
            the run partial, "warn" adds a warning, "off" does nothing.
        mass_delete_limit: Share of the known imports that may vanish in one run before nothing is deleted.
        raw: Write the table `records`.
        typed: Write a typed table for each template.
        status: Read only imports of this status.
        templates: Read only imports of these templates, by name or slug.
        exclude_templates: Read no imports of these templates, by name or slug.
        max_run_time: Length of time, such as "6h", after which a run commits what is complete and ends "interrupted".
        views: Keep the analysts' views up to date; only `connector.sync` and the command do.
        hints: Types of columns, as table → column → type.
        privacy: Privacy rules, as template or "*" → path → "drop", "null", "mask:N" or "hash".
        privacy_key: Key of the hashes.
        history: Keep every version of a row: True, or a list of templates; only `connector.sync` and the command do.
        allow_plain_http: Send the token to an http:// address of another host than this one.
        allow_experimental: Load into a destination where it is not proven that no row is missing.
        group_readable: Let the user's group read the files that are created.
        updated_at: A `dlt.sources.incremental("updated_at", initial_value=..., end_value=...)`, which bounds the run
            to imports last updated in `[initial_value, end_value)`. It limits what is read and never decides that an
            import is done.
        http_client: A function that returns an `httpx.AsyncClient`, with your proxy, client certificate, auth or hooks.
            Each run calls it once, and closes the client.

    Returns:
        A source with the resources `imports` and `records`, of which `with_resources` can select one.

    Raises:
        ConfigError: A setting is missing, invalid or unknown.

    While the pipeline extracts, dlt wraps in its PipelineStepFailed: AuthError, TransientError and ContractError if the
    imports cannot be listed; ConfigError if the source was changed in a way that would lose rows; LockedError if
    another run into the dataset is under way. An import that fails raises nothing, nor does a token that expires
    while records are read: `sync_imports` has the imports, and `sync_runs` says `partial` or `failed`.
    """
    given = {name: value for name, value in locals().items() if name in Settings.model_fields}
    check_folders()
    pipeline = active_pipeline()
    refuse_unknown_keys(pipeline)
    settings = Settings.load_from(lambda name: location_of(name, pipeline), given).with_client(http_client)
    shared = _SharedRun(settings, RunScope(window=_window(updated_at)), pipeline)

    @dlt.resource(name="imports", write_disposition="merge")
    def imports() -> Iterator[Any]:
        yield from shared.emit("imports", RunSession.import_tables)

    @dlt.resource(name="records", write_disposition="merge")
    def records() -> Iterator[Any]:
        yield from shared.emit("records", RunSession.record_tables)

    for resource in (imports, records):
        resource._pipe.gen.shared = shared  # type: ignore[union-attr]
    return imports, records


def settings_of(source: DltSource, pipeline: str) -> Settings:
    """Return the settings that `importer_source()` was called with, for a sync by the pipeline of this name.

    Raises ConfigError for another source, for one that selects or changes a part of what a sync loads, and for one with
    a window: the caller reads with these settings, without iterating the source, so all of this would be ignored.
    """
    resources = source.selected_resources if isinstance(source, DltSource) else {}
    found = [getattr(resource._pipe.gen, "shared", None) for resource in resources.values()]
    if sorted(resources) != sorted(RESOURCES) or not isinstance(found[0], _SharedRun):
        raise ConfigError("A sync takes a source that importer_source() returned, with both of its resources.")
    refuse_changes(source, {})
    if found[0].scope.window != Window():
        raise ConfigError(
            "updated_at bounds only runs by pipeline.run; leave it out here, and give sync "
            "scope=Scope(window=Window(since, until))."
        )
    refuse_other_pipeline(found[0].pipeline, pipeline)
    return found[0].settings


def configured_settings(pipeline: str) -> Settings:
    """Return the settings that `importer_source()` would find for a pipeline, resolved by dlt from its signature.

    Raises ConfigError that names what is missing, wrong or unknown, and where to set it.
    """
    refuse_unknown_keys(pipeline)
    declared = inspect.unwrap(importer_source)
    spec, _ = spec_from_signature(declared, inspect.signature(declared))
    try:
        with inject_section(ConfigSectionContext(pipeline_name=pipeline)):
            found = dict(resolve_configuration(spec(), sections=(*SOURCE, "importer")))
    except ConfigFieldMissingException as error:
        raise _missing(error.fields) from None
    except ConfigValueCannotBeCoercedException as error:
        raise _wrong(error.field_name, error.field_value) from None
    values = {name: found[name] for name in Settings.model_fields}
    return Settings.load_from(lambda name: location_of(name, pipeline), values)


def _missing(fields: list[str]) -> MissingSettingError:
    parts = []
    for field in fields:
        file = "secrets.toml" if field in SECRETS else "config.toml"
        parts.append(f"{field} is missing: set it in .dlt/{file} under [sources.importer], or as {_variable(field)}")
    return MissingSettingError("; ".join(parts) + ".")


_TAKES = {"Mapping": "a table", "bool": "true or false", "int": "a whole number", "float": "a number"}


def _wrong(field: str, value: object) -> ConfigError:
    shown = "of the wrong type" if field in SECRETS else repr(value)
    kind = str(Settings.model_fields[field].annotation)
    takes = next((words for name, words in _TAKES.items() if name in kind), "a text")
    return ConfigError(
        f"{field} under [sources.importer] is {shown}, but takes {takes}; correct it in .dlt/config.toml or "
        f"{_variable(field)}."
    )


def _variable(field: str) -> str:
    return "__".join([*SOURCE, field]).upper()


@contextmanager
def without_warnings_of_json() -> Iterator[None]:
    """Filter one warning out of dlt's log: JSON is text in Arrow and hinted as JSON on purpose, in every batch."""

    def is_worth_reading(record: logging.LogRecord) -> bool:
        return _JSON_AS_TEXT not in record.getMessage()

    log = logging.getLogger("dlt")
    log.addFilter(is_worth_reading)
    try:
        yield
    finally:
        log.removeFilter(is_worth_reading)


class _SharedRun:
    """The run that both resources share, a new one each time dlt iterates them.

    `pipeline` is the name of the pipeline that was active when dlt looked for the settings.
    """

    def __init__(self, settings: Settings, scope: RunScope, pipeline: str | None) -> None:
        self.settings = settings
        self.scope = scope
        self.pipeline = pipeline
        self._session: RunSession | None = None
        self._release: Callable[[], None] = lambda: None
        self._unfinished: set[str] = set()

    def emit(self, name: str, tables: Callable[[RunSession, str], Iterator[TableRows]]) -> Iterator[Any]:
        """Yield the tables of a resource; the last resource to end adds what belongs to the whole run."""
        with without_warnings_of_json():
            yield from self._emit(name, tables)

    def _emit(self, name: str, tables: Callable[[RunSession, str], Iterator[TableRows]]) -> Iterator[Any]:
        mark = Marker()
        load_id = _load_id()
        session = self._begin()
        done = False
        try:
            yield from map(mark, tables(session, load_id))
            self._unfinished.discard(name)
            if not self._unfinished:
                yield from map(mark, session.missing_tables())
                state = session.state
                note_origin(origin_of(dlt.current.pipeline(), state.loads_seen, state.last_load))
                yield mark(session.run_row(load_id))
                check_lock_held(dlt.current.pipeline())  # a package that was not extracted completely is never loaded
            done = True
        except Exception as error:
            session.record.abort(error)
            raise
        finally:
            if not done or not self._unfinished:
                session.close()
                self._session = None
            if not done:
                self._release()

    def _begin(self) -> RunSession:
        if self._session is None:
            source = dlt.current.source()
            refuse_changes(source, package_state())
            refuse_other_pipeline(self.pipeline, dlt.current.pipeline().pipeline_name)
            check_only_source(dlt.current.pipeline())
            check_failed_jobs_raise()
            self._unfinished = set(RESOURCES) & set(source.selected_resources)
            warehouse = Warehouse(dlt.current.pipeline())
            warehouse.check_writable(experimental=self.settings.allow_experimental)
            prepare_for_loading(dlt.current.pipeline())
            self._release = hold_until_loaded(dlt.current.pipeline(), acquire_sole_writer(dlt.current.pipeline()))
            session = RunSession(self.settings, self.scope, warehouse, Ports.real())
            if len(self._unfinished) == 1:
                # `succeeded` means a complete sync, and this is only one half
                session.tally.mode = f"{next(iter(self._unfinished))} only"
            try:
                session.open(reading="records" in self._unfinished, listed="imports" in self._unfinished)
                if VERSIONS in session.state.tables:
                    adopt_rebuilt_tables(dlt.current.pipeline(), dlt.current.source_schema())
            except BaseException:
                session.close()
                self._release()
                raise
            self._session = session
        return self._session


def _load_id() -> str:
    """Return the id of the package that dlt extracts into. Raises ConfigError if no pipeline is extracting."""
    try:
        return current_load_id()
    except ContextDefaultCannotBeCreated:
        raise ConfigError(
            "The resources of importer_source() are compared with a warehouse while they are read, so only a pipeline "
            "can read them: use pipeline.run(importer_source()), or `importer-sync preview` for a look at the data."
        ) from None


def _window(updated_at: Any) -> Window:
    if updated_at is None:
        return Window()
    if getattr(updated_at, "cursor_path", None) != "updated_at":
        raise ConfigError("updated_at takes an incremental on the cursor 'updated_at', and no other.")
    ends = getattr(updated_at, "range_start", "closed"), getattr(updated_at, "range_end", "open")
    if ends != ("closed", "open") or getattr(updated_at, "last_value_func", max) is not max:
        raise ConfigError("updated_at bounds a window that begins with initial_value and ends before end_value.")
    window = Window(since=_instant(updated_at.initial_value), until=_instant(updated_at.end_value))
    return Scope(window=window).window  # it refuses one that ends before it begins


def _instant(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(f"updated_at is bounded by {value!r}, which is not an ISO 8601 date or time.") from None
