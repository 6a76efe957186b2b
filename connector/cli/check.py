"""`importer-sync check`: is the service there, is the token good, can the destination be written?"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.cli.output import Output
    from connector.client import ServiceClient
    from connector.models import Import
    from connector.settings import Settings

NAME = "check"
HELP = "reach the service, prove the token, write to the destination; say cause and cure"
EXAMPLES = ("importer-sync check",)
SCRATCH_TABLE = "importer_check"
ENOUGH_TO_ORDER = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(arguments: argparse.Namespace) -> int:
    from connector.cli.configuration import load_settings, location, open_pipeline
    from connector.cli.output import Output
    from connector.cli.problems import FAILED

    output = Output(arguments)
    settings, pipeline = load_settings(), open_pipeline(arguments)
    service, learned = _service(settings)
    destination = _destination(pipeline)
    checks: dict[str, dict[str, Any]] = {
        "configuration": {"ok": True, "error": None},
        "service": {"ok": service is None, "error": service},
        "destination": {"ok": destination is None, "error": destination},
    }
    ok = all(check["ok"] for check in checks.values())
    output.document({"ok": ok, "checks": checks, "service": learned, "destination": location(pipeline)})
    _tell(output, checks, learned, settings, f"{location(pipeline)}, dataset {arguments.dataset}")
    return 0 if ok else FAILED


def _service(settings: Settings) -> tuple[str | None, dict[str, Any] | None]:
    from connector.cli.asking import ask
    from connector.errors import ConnectorError

    try:
        return None, ask(settings, _learn)
    except ConnectorError as error:
        return str(error), None


async def _learn(client: ServiceClient) -> dict[str, Any]:
    """What a first look at the service tells."""
    began = time.perf_counter()
    first = await client.list_imports(1)
    listing_s = time.perf_counter() - began
    again, unasked = await client.list_imports(1), await client.list_imports(1, None)
    largest = max(first.imports, key=lambda i: i.row_count, default=None)
    records = None
    if largest is not None:
        began = time.perf_counter()
        page = await client.list_records(largest.slug, 1)
        records = {"rows": page.size, "seconds": round(time.perf_counter() - began, 4)}
    same = [i.slug for i in first.imports] == [i.slug for i in again.imports]
    return {
        "imports_on_first_page": first.size,
        "unreadable_on_first_page": len(first.rejects),
        "more_pages": first.size >= 100,
        "templates": sorted({i.template_name for i in first.imports if i.template_name}),
        "statuses": dict(Counter(i.status for i in first.imports)),
        "default_page_size": unasked.size if unasked.size < first.size else None,
        "order": _order(first.imports) if same else "different at every request",
        "listing_seconds": round(listing_s, 4),
        "page_of_records": records,
    }


def _order(imports: Sequence[Import]) -> str | None:
    """The order the imports seem to come in; None where too few are there to tell."""
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
    """None if a table could be made, written, read and dropped; otherwise what went wrong."""
    from connector.cli.problems import as_problem
    from connector.locking import duckdb_file
    from connector.warehouse import Warehouse

    file = duckdb_file(pipeline)
    was_there = file is None or file.exists()
    try:
        Warehouse(pipeline).check_supported()
        _write_and_drop(pipeline)
    except Exception as error:
        return str(as_problem(error))
    finally:
        if file is not None and not was_there:
            file.unlink(missing_ok=True)
    return None


def _write_and_drop(pipeline: Pipeline) -> None:
    with pipeline.sql_client() as client:
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
                with suppress(Exception):  # not empty: a run began meanwhile, and it is its dataset now
                    client.execute_sql(f"DROP SCHEMA {client.fully_qualified_dataset_name()}")


def _tell(
    output: Output, checks: dict[str, Any], learned: dict[str, Any] | None, settings: Settings, where: str
) -> None:
    named = {"configuration": "[sources.importer] is complete", "service": settings.base_url, "destination": where}
    for name, check in checks.items():
        output.say(f"{'ok    ' if check['ok'] else 'FAILED'}  {name:<14}{named[name]}")
        if check["error"]:
            output.say(f"        {check['error']}")
    if learned is None:
        return
    more = " or more" if learned["more_pages"] else ""
    statuses = ", ".join(f"{n} {status}" for status, n in learned["statuses"].items()) or "none"
    output.say(f"        imports       {learned['imports_on_first_page']}{more}: {statuses}")
    output.say(f"        templates     {', '.join(learned['templates']) or 'none'}")
    output.say(f"        order         {learned['order'] or 'too few imports to tell'}")
    output.say(f"        default page  {learned['default_page_size'] or 'as many as were asked for'}")
    speed = f"{learned['listing_seconds'] * 1000:.0f} ms for a page of imports"
    if learned["page_of_records"]:
        speed += (
            f", {learned['page_of_records']['seconds'] * 1000:.0f} ms for {learned['page_of_records']['rows']} rows"
        )
    output.say(f"        speed         {speed}")
