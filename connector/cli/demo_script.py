"""Perform the demo: three syncs of a service that changes in between, and the proof that nothing is missing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.cli.output import Output, amount, duration
from connector.cli.progress import progress_of
from connector.cli.signals import Stop
from connector.errors import ConfigError
from connector.reporting.views.applying import keep_current
from connector.reporting.views.query import ask
from connector.run.sync import sync
from connector.runs import Status, Tally
from connector.sandbox import FileError, Service, add_uploads
from connector.settings import Settings
from connector.source import without_warnings_of_json
from connector.warehouse import Warehouse

GENERATED = (("customers", 4), ("orders", 4), ("products", 2), ("employees", 2))
ROWS = 250
SAMPLES = ("planets.json", "mountains.csv")
QUERIES = (
    (
        "How many imports does each template have, and how fresh are they?",
        "SELECT template, imports, last_upload_at FROM v_freshness",
    ),
    (
        "Who uploaded what, and when?",
        "SELECT uploader, file_name, row_count, uploaded_at FROM v_imports WHERE uploader IS NOT NULL "
        "ORDER BY uploaded_at DESC LIMIT 5",
    ),
    (
        "Which values do not fit the type of their field?",
        "SELECT template, field, value, count(*) AS times FROM v_misfits GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT 5",
    ),
)


def offered(seed: int, paths: Sequence[str]) -> Service:
    """Return a service with generated uploads and with real files: the user's, or the two included ones."""
    service = Service(seed=seed)
    for template, imports in GENERATED:
        add_uploads(service, template, imports, ROWS)
    samples = files("connector.sandbox") / "samples"
    for path in paths or [str(samples / name) for name in SAMPLES]:
        try:
            service.add_file(Path(path))
        except FileError as error:
            raise ConfigError(f"--file {error}.") from None
        except OSError as error:
            raise ConfigError(f"--file {path} cannot be read ({error.strerror}).") from None
    return service


class Demonstration:
    """One run of the demo; `act` prints it, `document` is what --json shows of it."""

    def __init__(self, service: Service, url: str, pipeline: Pipeline, output: Output, stop: Stop) -> None:
        self._service = service
        self._settings = Settings.load(base_url=url, access_token=service.token)
        self._pipeline = pipeline
        self._warehouse = Warehouse(pipeline)
        self._output = output
        self._stop = stop
        self._tallies: list[Tally] = []
        self._requests: list[dict[str, int]] = []
        self._changes: list[str] = []
        self._tables: dict[str, int] = {}
        self.queries: list[tuple[str, str, list[dict[str, Any]]]] = []
        self.equal = False

    def act(self) -> None:
        steps = (self._first_sync, self._show_tables, self._second_sync, self._third_sync, self._prove, self._ask)
        for step in steps:
            if self._stop() is not None:
                return
            step()

    def document(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "runs": [tally.as_json() for tally in self._tallies],
            "requests": self._requests,
            "changes": self._changes,
            "tables": self._tables,
            "queries": [{"question": q, "sql": sql, "rows": len(rows)} for q, sql, rows in self.queries],
        }

    # -- the acts ------------------------------------------------------------------------------------------------

    def _first_sync(self) -> None:
        imports = self._service.imports()
        rows = sum(shown["row_count"] for shown in imports)
        self._output.say(
            f"1. The sandbox serves {len(imports)} imports with {rows:,} rows on {self._service.base_url}."
        )
        self._sync("   Synced")

    def _show_tables(self) -> None:
        with self._warehouse.connect() as connection:
            for table in sorted(connection.columns()):
                if not table.startswith("_dlt"):
                    [row] = connection.query(f"SELECT count(*) AS n FROM {connection.name(table)}").to_pylist()
                    self._tables[table] = row["n"]
            typed = [table for table in self._tables if table.startswith("records_")]
            self._output.say()
            self._output.table("   Tables, in the schema importer_data:", ("table", "rows"), list(self._tables.items()))
            for table in sorted(typed, key=lambda name: (name in map(_generated, GENERATED), name))[:2]:
                rows = connection.query(f"SELECT * FROM {connection.name(table)} ORDER BY _sort LIMIT 3").to_pylist()
                columns = [name for name in rows[0] if not name.startswith("_")][:5] if rows else []
                self._output.table(f"   {table}:", columns, [[row[c] for c in columns] for row in rows])

    def _second_sync(self) -> None:
        self._changes, touched = _change(self._service)
        self._output.say("2. The data in the service changes:")
        for line in self._changes:
            self._output.say(f"   - {line}")
        self._sync("   Synced again")
        read = {path.split("/")[4] for _, path, _, _ in self._service.log if path.endswith("/records")}
        self._output.say(
            f"   The run read the records of {amount(len(read), 'import')}, {'exactly' if read == touched else 'not'} "
            f"those that changed; {self._asked()}."
        )

    def _third_sync(self) -> None:
        self._output.say("3. Nothing changes:")
        self._sync("   Synced once more")
        self._output.say(f"   {self._asked()[0].upper()}{self._asked()[1:]}.")

    def _prove(self) -> None:
        there, here = _in_service(self._service), self._in_warehouse()
        self.equal = there == here
        verdict = "equal" if self.equal else "NOT equal"
        self._output.say(
            "",
            f"Warehouse and service are {verdict}: {len(self._service.slugs())} imports, "
            f"{len(there):,} rows, every value compared digit for digit.",
            "",
        )

    def _ask(self) -> None:
        keep_current(self._pipeline, loaded=True)
        for question, sql in QUERIES:
            with ask(self._pipeline, sql) as answer:
                rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
            self.queries.append((question, sql, rows))

    # -- parts of the acts ---------------------------------------------------------------------------------------

    def _sync(self, words: str) -> None:
        self._service.requests.clear()
        self._service.log.clear()
        began = time.monotonic()
        with without_warnings_of_json(), progress_of(self._output, steps=False) as progress:
            tally = sync(self._pipeline, self._settings, progress=progress, stop=self._stop)
        self._tallies.append(tally)
        self._requests.append({name: self._service.requests[name] for name in ("imports", "import", "records")})
        if tally.fatal is not None:
            raise tally.fatal
        if tally.status is Status.succeeded:
            took = duration(time.monotonic() - began)
            self._output.say(
                f"{words} in {took}: {amount(tally.imports_changed, 'import')} changed, "
                f"{tally.imports_deleted} deleted, {amount(tally.records_loaded, 'record')} loaded."
            )

    def _asked(self) -> str:
        asked = self._requests[-1]
        return (
            f"{amount(asked['imports'], 'request')} to list imports, {asked['import']} for single imports, "
            f"{asked['records']} for records"
        )

    def _in_warehouse(self) -> dict[tuple[str, str], Any]:
        with self._warehouse.connect() as connection:
            rows = connection.query(
                f"SELECT import_slug, slug, CAST(data AS VARCHAR) AS data FROM {connection.name('records')} "
                f"WHERE {connection.column('_deleted_at')} IS NULL"
            ).to_pylist()
        return {(row["import_slug"], row["slug"]): _exact(row["data"]) for row in rows}


def _in_service(service: Service) -> dict[tuple[str, str], Any]:
    found = {}
    for slug in service.slugs():
        for text in service.record_texts(slug):
            record = _exact(text)
            found[slug, record["slug"]] = record["data"]
    return found


def _exact(text: str) -> Any:
    """Parse JSON with numbers as they are written, distinct from text."""
    return json.loads(text, parse_float=lambda digits: ("number", digits), parse_int=lambda digits: ("number", digits))


def _generated(template: tuple[str, int]) -> str:
    return f"records_{template[0]}"


def _change(service: Service) -> tuple[list[str], set[str]]:
    """Make some changes of every kind; return a description of each, and the live imports that were changed."""
    first, second, third, gone = service.slugs()[:4]
    records = list(service.record_slugs(first))
    content = next(iter(service.records(first)))["data"]
    names = {shown["slug"]: (shown["metadata"] or {}).get("file_name", shown["slug"]) for shown in service.imports()}
    service.edit_row(first, records[0], {**content, "Country": "Iceland"})
    service.delete_row(second, next(iter(service.record_slugs(second))))
    service.append_rows(third, [{**content, "Last name": "Appended", "newsletter": True}])
    service.delete_import(gone)
    [added] = service.add_generated("orders", imports=1, rows=120)
    return [
        f"edits a row of {names[first]}",
        f"deletes a row of {names[second]}",
        f"appends a row with a field that is new to {names[third]}",
        f"deletes the import of {names[gone]}",
        "uploads another 120 orders",
    ], {first, second, third, added}
