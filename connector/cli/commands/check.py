"""`importer-sync check`: test whether the service answers, the token is valid and the destination can be written.

With `--destination-deep`, test whether the destination keeps what this package guarantees.
"""

from __future__ import annotations

import argparse
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.cli.configuration import open_pipeline
from connector.cli.conformance import prove
from connector.cli.environment import settings_folder
from connector.cli.exit_codes import FAILED, PARTIAL, explain
from connector.cli.output import Output
from connector.cli.service_call import OF_IMPORTS, OF_RECORDS, ask, first_page, longest_page
from connector.cli.source_settings import load_settings
from connector.cli.unmatched import unmatched
from connector.errors import ConnectorError, NewerFormatError, means_no_such_page
from connector.extract.convention import PageConvention
from connector.folders import dlt_folder
from connector.models import Import, ImportPage
from connector.service.client import ServiceClient
from connector.settings import Settings, shown_address
from connector.warehouse import Warehouse
from connector.warehouse.adapters import adapter_of
from connector.warehouse.destination import destination_type, local_file, location, open_client
from connector.warehouse.lock import check_lockable
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.unused_file import removed_if_unused

EXAMPLES = ("importer-sync check", "importer-sync check --destination-deep")
SCRATCH_TABLE = "importer_check"
SECRETS = "secrets.toml"
ENOUGH_TO_ORDER = 3
MAX_PER_PAGE = 100
MOST_PAGES = 2**14
_EVERY_CHARACTER = ("UTF8", "SQL_ASCII")  # the second one stores bytes as they are


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--destination-deep",
        action="store_true",
        help="instead, prove each guarantee on a scratch dataset of the destination; exit code 3 if one is not kept",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.destination_deep:
        return _prove(arguments, output)
    found = examine(arguments)
    output.document(found.document)
    report(output, found)
    return found.exit_code


def _prove(arguments: argparse.Namespace, output: Output) -> int:
    place = location(open_pipeline(arguments))
    output.say(f"On a scratch dataset of {place}; this takes about a minute.")
    found = []
    for each in prove(arguments):
        found.append(each)
        output.say(f"{'proven' if each.proven else 'FAILED'}  {each.name:<18}{each.detail}")
    proven = all(each.proven for each in found)
    output.document({"ok": proven, "guarantees": [each.as_json() for each in found], "destination": place})
    return 0 if proven else PARTIAL


@dataclass(frozen=True, slots=True)
class Examination:
    """What was tested, and the results."""

    checks: dict[str, dict[str, Any]]
    named: dict[str, str]
    learned: dict[str, Any] | None
    destination: str
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks.values())

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else FAILED

    @property
    def document(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": self.checks, "service": self.learned, "destination": self.destination}


def examine(arguments: argparse.Namespace) -> Examination:
    """Run all tests. Raises ConfigError if the configuration is incomplete, or the warehouse has a newer format."""
    settings, pipeline = load_settings(arguments.pipeline_name), open_pipeline(arguments)
    service, learned = _service(settings)
    destination = _destination(pipeline)
    place = location(pipeline)
    checks: dict[str, dict[str, Any]] = {
        "configuration": {"ok": True, "error": None},
        "service": {"ok": service is None, "error": service},
        "destination": {"ok": destination is None, "error": destination},
    }
    named = {
        "configuration": "[sources.importer] is complete",
        "service": shown_address(settings.base_url),
        "destination": f"{place}, dataset {arguments.dataset}",
    }
    warnings: tuple[str, ...] = ()
    if destination is None:
        warnings = (
            *unmatched(Warehouse(pipeline), settings),
            *_open_to_others(local_file(pipeline), settings),
            *_secrets_open_to_others(),
            *_unfit_postgres(pipeline),
        )
    return Examination(checks, named, learned, place, warnings)


def _service(settings: Settings) -> tuple[str | None, dict[str, Any] | None]:
    try:
        return None, ask(settings, _learn)
    except ConnectorError as error:
        return str(error), None


async def _learn(client: ServiceClient) -> dict[str, Any]:
    """Return what a first request to the service shows."""
    # it also opens the connection, so its duration says little
    size, (convention, first, imports) = await longest_page(lambda per_page: _listing(client, per_page), OF_IMPORTS)
    began = time.perf_counter()
    again = await client.list_imports(convention.first, size)
    listing_s = time.perf_counter() - began
    unasked = await client.list_imports(convention.first, None) if size == MAX_PER_PAGE else first
    largest = max(first.imports, key=lambda i: i.row_count, default=None)
    records = None
    if largest is not None:
        began = time.perf_counter()
        number = convention.first
        _, page = await longest_page(lambda per_page: client.list_records(largest.slug, number, per_page), OF_RECORDS)
        records = {"rows": page.size, "seconds": round(time.perf_counter() - began, 4)}
    same = [i.slug for i in first.imports] == [i.slug for i in again.imports]
    return {
        "imports": imports,
        "imports_on_first_page": first.size,
        "unreadable_on_first_page": len(first.rejects),
        "more_pages": first.size >= size,
        "templates": sorted({i.template_name for i in first.imports if i.template_name}),
        "statuses": dict(Counter(i.status for i in first.imports)),
        "rows_on_first_page": sum(max(i.row_count, 0) for i in first.imports),
        "default_page_size": unasked.size if unasked.size < first.size else None,
        "order": _order(first.imports) if same else "different at every request",
        "listing_seconds": round(listing_s, 4),
        "page_of_records": records,
        "requests": client.stats.requests,
        "retries": client.stats.retries,
    }


async def _listing(client: ServiceClient, per_page: int) -> tuple[PageConvention, ImportPage, int | None]:
    """Return how pages are numbered, the first page of imports and their estimated number."""
    convention, first = await first_page(client, per_page)
    count = await _count(client, convention, per_page) if first.size >= per_page else first.size
    return convention, first, count


async def _count(client: ServiceClient, convention: PageConvention, per_page: int) -> int | None:
    """Estimate the number of imports if there is more than one page; return None if there are too many.

    The last page is found by bisection.
    """
    full, beyond = 1, 2
    while (size := await _size(client, convention, beyond, per_page)) >= per_page:
        full, beyond = beyond, beyond * 2
        if beyond > MOST_PAGES:
            return None
    while beyond - full > 1:
        middle = (full + beyond) // 2
        found = await _size(client, convention, middle, per_page)
        full, beyond, size = (middle, beyond, size) if found >= per_page else (full, middle, found)
    return full * per_page + size


async def _size(client: ServiceClient, convention: PageConvention, page: int, per_page: int) -> int:
    try:
        return (await client.list_imports(convention.number(page), per_page)).size
    except ConnectorError as error:
        if means_no_such_page(error, page):
            return 0
        raise


def _order(imports: Sequence[Import]) -> str | None:
    """Return the order the imports seem to be in; None if there are too few to tell."""
    if len(imports) < ENOUGH_TO_ORDER:
        return None
    for field in ("created_at", "updated_at"):
        times = [getattr(i, field) for i in imports]
        if times == sorted(times):
            return f"{field} ascending"
        if times == sorted(times, reverse=True):
            return f"{field} descending"
    return "neither by created_at nor by updated_at"


def _destination(pipeline: Pipeline) -> str | None:
    """Return None if a table could be created, written, read and dropped; otherwise what went wrong.

    Raises NewerFormatError for a warehouse of a newer format, before anything is written.
    """
    file = local_file(pipeline)
    try:
        with removed_if_unused(pipeline):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)  # as a run does
            check_lockable(pipeline)
            warehouse = Warehouse(pipeline)
            warehouse.check_writable()
            if warehouse.exists():
                with warehouse.connect() as connection:
                    inspect_dataset(connection)
            _write_and_drop(pipeline)
    except NewerFormatError:
        raise
    except Exception as error:
        return str(explain(error))
    return None


def _write_and_drop(pipeline: Pipeline) -> None:
    with open_client(pipeline) as client:
        made = not client.has_dataset()
        if made:
            client.create_dataset()
        table = client.make_qualified_table_name(SCRATCH_TABLE)
        try:
            client.execute_sql(f"CREATE TABLE {table} (n INTEGER)")
            client.execute_sql(f"INSERT INTO {table} VALUES (1)")
            rows = client.execute_sql(f"SELECT n FROM {table}")
            client.execute_sql(f"DROP TABLE {table}")
            if not rows or rows[0][0] != 1:
                raise OSError(0, "what was written is not what is read back")
        finally:
            if made:
                with suppress(Exception):  # not empty: a run began meanwhile and uses the dataset
                    adapter_of(pipeline).drop_empty(client)


def _open_to_others(file: Path | None, settings: Settings) -> Iterator[str]:
    """Yield a sentence if others can read the warehouse. Leave its mode unchanged, because somebody may rely on it."""
    if file is None or os.name != "posix" or not file.exists():
        return
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & (0o007 if settings.group_readable else 0o077):
        allowed = "chmod 640" if settings.group_readable else "chmod 600, or set group_readable = true for the group"
        yield f"Users other than this one can open {file} (mode {mode:o}) and so read all rows: {allowed}."


def _secrets_open_to_others() -> Iterator[str]:
    """Yield a sentence for each file of secrets that others can read, in a folder that they can enter."""
    for file in (folder / SECRETS for folder in (settings_folder(), dlt_folder())):
        with suppress(OSError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if os.name == "posix" and mode & 0o077 and file.parent.stat().st_mode & 0o011:
                yield f"Users other than this one can read {file} (mode {mode:o}) and so the secrets in it: chmod 600."


def _unfit_postgres(pipeline: Pipeline) -> Iterator[str]:
    """Yield a sentence about a role that may do too much, and one about a database that cannot store every text."""
    if destination_type(pipeline) != "postgres":
        return
    with open_client(pipeline) as client:
        rows = client.execute_sql("SELECT current_setting('is_superuser'), current_setting('server_encoding')")
    superuser, encoding = (rows or [("off", "UTF8")])[0]
    if superuser == "on":
        yield (
            "The role of this session is a PostgreSQL superuser, who can change everything on the server: "
            "docs/postgres.md has one that can do only what a run needs."
        )
    if encoding not in _EVERY_CHARACTER:
        yield (
            f"The database stores texts in {encoding}, which lacks most characters, and one that it lacks stops every "
            "run: create a database with ENCODING 'UTF8'."
        )


def report(output: Output, found: Examination) -> None:
    """Print the results for a person."""
    for name, check in found.checks.items():
        output.say(f"{'ok    ' if check['ok'] else 'FAILED'}  {name:<14}{found.named[name]}")
        if check["error"]:
            output.say(f"        {check['error']}")
    for sentence in found.warnings:
        output.say(f"warning {sentence}")
    if found.learned is not None:
        for name, words in _lessons(found.learned):
            output.say(f"        {name:<14}{words}")


def _lessons(learned: dict[str, Any]) -> Iterator[tuple[str, str]]:
    some = ", of those on the first page" if learned["more_pages"] else ""
    statuses = ", ".join(f"{n} {status}" for status, n in learned["statuses"].items()) or "none"
    count = (
        f"{learned['imports']:,}"
        if learned["imports"] is not None
        else f"more than {MOST_PAGES * learned['imports_on_first_page']:,}"
    )
    yield "imports", (f"about {count}; {statuses}{some}" if some else statuses)
    if learned["unreadable_on_first_page"]:
        yield "unreadable", f"{learned['unreadable_on_first_page']} imports are not what the interface says"
    yield "templates", (", ".join(learned["templates"]) or "none") + some
    yield "rows", f"{learned['rows_on_first_page']:,}{some}"
    yield "order", learned["order"] or "too few imports to tell"
    yield "default page", str(learned["default_page_size"] or "as many as were asked for")
    speed = f"{learned['listing_seconds'] * 1000:.0f} ms for a page of imports"
    page = learned["page_of_records"]
    yield "speed", speed + (f", {page['seconds'] * 1000:.0f} ms for {page['rows']} rows" if page else "")
    if learned["retries"]:
        yield "retries", f"{learned['retries']} of {learned['requests']} requests had to be repeated"
