"""docs/settings.md, docs/tables.md and docs/limits.md, written from the code: `make docs`; a test compares them.

What a setting means stands beside it in `.dlt/config.toml`, what a column means beside the dbt source that describes
it; only columns that dbt is told nothing about have their words here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from connector.cli.environment import DLT_DEFAULTS
from connector.reporting.views import sources
from connector.reporting.views.generated import ready_checks, ready_views
from connector.reporting.views.layout import Layout, TypedField, TypedTable
from connector.service.limits import LIMITS, MIB, QUICK_LIMITS, Limits
from connector.settings import Settings
from connector.warehouse.tables import IMPORTS, LOAD_ID, RECORDS, RECORDS_SCHEMA, SYSTEM_SCHEMAS, TYPED_SCHEMA
from tests.docs.pages import CHECKOUT

SOURCE = "sources.importer"
TABLES = {name: f"{SOURCE}.{name}." for name in ("hints", "privacy")}  # each has a table for each table or template
LOADED = "The load that brought it."
COUNTED = {
    "imports_listed": "Imports that the service listed.",
    "imports_changed": "Imports whose records were read, because they were new, changed or unfinished.",
    "imports_deleted": "Imports found gone.",
    "imports_failed": "Imports that could not be read.",
    "imports_unreconciled": "Imports whose number of records differs from row_count.",
    "records_loaded": "Records committed.",
    "records_rejected": "Records that could not be loaded.",
    "requests": "Requests sent, including each attempt.",
    "retries": "Requests that were retries.",
    "bytes_received": "Bytes of all replies.",
}
MEANINGS: Mapping[str, Mapping[str, str]] = {
    IMPORTS: {"_content_hash": "Shows the sync whether anything in this row changed."},
    RECORDS: {
        "created_at": "When the record was created (UTC).",
        "updated_at": "When it last changed (UTC).",
    },
    "sync_runs": {
        "mode": "incremental or backfill; `incremental (submitted)` if the setting `status` bounded it; "
        "`shard 2/4` for a shard, `split 4` for the division among shards; "
        "imports only or records only if dlt alone loaded one of the two.",
        "started_at": "When it began (UTC).",
        "finished_at": "When it ended (UTC); null while it is under way.",
        **COUNTED,
        "load_ids": "The load packages it committed, a JSON list.",
        "error": "The first reasons why it did not succeed, as sentences.",
        "error_kind": (
            "The kind of the error that ended it; `Unsettled` if it may have left packages half loaded, `Repaired` "
            "once a later run found everything in order."
        ),
        "connector_version": "The version of this package.",
        "destination": "The destination's name in dlt.",
        "window_since": "The start of the window of the run, if it had one.",
        "window_until": "The end of the window, exclusive.",
        "loads_seen": (
            "How many packages of this source dlt had completed when the run began, with those of the run itself. The "
            "next run checks all rows if there are others, and then empties the column in the rows before its own."
        ),
        "delete_limit_base": (
            "If a run refused to delete imports because of mass_delete_limit, or could not tell which are missing: how "
            "many were known then, in the rows of all runs. Later runs take the share of this number, until a run "
            "finds no more of the known imports missing than allowed, or --allow-mass-delete was given."
        ),
        "left_out_by_name": (
            "JSON, in the rows of all runs: each name under exclude_templates with the slugs of the templates that it "
            "leaves out, or left out before they were renamed. A template stays there until runs have read it again."
        ),
    },
    "sync_rejects": {
        "run_id": "The run that met it.",
        "import_slug": "The import it belongs to.",
        "record_slug": "Its key, if it has one.",
        "seen_at": "When the run met it (UTC).",
    },
    "sync_fields": {
        "table_name": "The table that has its column: a typed table, or imports for a key of metadata.",
        "column_name": "Its column; for an overflowed field, a name that no column has.",
        "template_slug": "The template of the table.",
        "data_type": "The type of the column, which it keeps for ever; `overflowed` if it has no column, see `_more`.",
        "has_text": "Whether there is a column `…__v_text` for values that do not fit.",
        "has_double": "Whether there is a column `…__v_double` for fractions among whole numbers.",
        "first_seen_at": "When a row first had it, if only as null (UTC).",
        "last_seen_at": "When a live row last had a value in it (UTC); as `first_seen_at` if none ever had.",
        "value_count": "Live rows with a value in its columns; null for an overflowed field.",
        "null_count": "Live rows without one; null for an overflowed field.",
        "conflict_count": "Values not of the column's type: in a variant column, or in a text column without a hint.",
    },
}
ARROW = ((pa.types.is_boolean, "bool"), (pa.types.is_integer, "bigint"), (pa.types.is_timestamp, "timestamp"))

SETTINGS_PAGE = """# Settings

<!-- Written by `make docs`, from the code and the comments in .dlt/config.toml. -->

Each key is set in `.dlt/config.toml` of the working directory, a secret in `.dlt/secrets.toml`, or as an environment
variable, which takes precedence. `importer-sync init` writes the files, and `importer-sync check` tests them. A
wrong value is reported in one sentence, with exit code 2. A key in a section of the pipeline, as
`[crm.{source}]`, counts for `--pipeline-name crm` alone and takes precedence there.

## `[{source}]`

{own}

Hints have a table for each typed table; as an environment variable they are JSON:

```toml
[sources.importer.hints.records_customers]
signup_date = "date"
```

```sh
SOURCES__IMPORTER__HINTS='{{"records_customers": {{"signup_date": "date"}}}}' importer-sync run
```

## Other sections

{others}

dlt has many more settings; the pages [DuckDB](duckdb.md) and [PostgreSQL](postgres.md) show those of its destinations.

## What the command sets for dlt

These values were measured to be the fastest for loading Arrow into one warehouse, or keep tokens out of dlt's traces.
The same variable in the environment overrides each, and so does its key in `config.toml` (`[load] workers` for
`LOAD__WORKERS`), except for `ARROW_…` and `OPENBLAS_…`, which are not settings of dlt.

{dlt}
"""
TABLES_PAGE = """# Tables, views and checks

<!-- Written by `make docs`, from the code and the files in sql/. -->

All tables are in the schema of the dataset, `importer_data`. Times are UTC, to the microsecond; JSON is kept as text,
character for character as it was received. Live rows have `_deleted_at IS NULL`. dlt's own tables, `_dlt_…`, are in the
same schema.

{system}

## `records_<template>`

The records of a template, one row each, with one column per field after the columns listed here. The table keeps its
name when the template is renamed; `records_untemplated` has the records of imports without a template.

{typed}

A text column takes every number and boolean as its JSON text. Any other value that does not fit its column goes
unchanged to `<column>__v_text`, a fraction in a column of whole numbers to `<column>__v_double`; the first such value
creates the column. An empty text in a column of numbers, booleans or dates is null, as is an empty cell. Rows
that version 0.1.0 loaded keep scalars beside text in `<column>__v_text` until their import is read again or the table
is rebuilt.

A table has at most 1,000 columns for fields and their variants, and an import adds at most 200 new fields to a table
that already has some. If there are more fields, those with values in the most rows get the columns. The others are in
the JSON column `_more`, an object with the row's own keys, which is created when it is needed (`_more_2` if an earlier
version gave `_more` to a field of that name). `importer-sync rebuild` gives columns that are left to such fields. A
field keeps its column even if no row has a value in it any more; to choose all anew, drop the table and delete its rows
from `sync_fields`, and the next run reads its imports again (rows that `deletes = "keep"` kept stay in `records`
alone). Up to 1,000 fields without a column are listed in `sync_fields`; a table with that many gives no column to any
further field.

## Views

`importer-sync sql apply` creates the views in a separate schema, `importer_data_views`, and recreates views that new
fields or templates changed. Each template also has a view with its name. It has the live rows, with the original field
names as columns, the types of the base columns, misfits as text in `<name>__misfit` once there are any, and the system
columns last.

{views}

## Checks

`importer-sync sql check` runs them. Each returns the violating rows; if there is one, the exit code is 3.

{checks}
"""
LIMITS_PAGE = """# Limits on replies

<!-- Written by `make docs`, from connector/service/limits.py. -->

However much the service sends, and however slowly, every request ends, with a sentence that says why. A service that
follows the interface stays far below every limit.

{limits}

`connect_s` to `call_s` apply to each request. They do not include pauses because of `requests_per_second`, a 429 or an
outage of the whole service, except the pauses between the attempts of one call. `max_run_time` limits a run as a whole,
see [settings](settings.md). aiohttp limits the header lines of a reply (8 kB each, 128 of them).

An element that cannot be used is rejected by itself; the other elements of its page are loaded. [What to do about a
message](troubleshooting.md) says what is retried, how often, and how a request ends.
"""


@dataclass(frozen=True, slots=True)
class Explained:
    """A key of a settings file with the comment above it; `shown` is its value there, default or example."""

    section: str
    key: str
    shown: Any
    meaning: str


def explained(file: str) -> Iterator[Explained]:
    """Every key of `.dlt/<file>`, those included that are commented out."""
    section, words = "", list[str]()
    for line in (CHECKOUT / ".dlt" / file).read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not text:
            words = []
        elif head := re.fullmatch(r"\[([\w.]+)\]", text):
            section = head[1]
        elif re.match(r"\w+ = ", text):
            [(key, value)] = tomllib.loads(text).items()
            yield Explained(section, key, value, " ".join(words))
        else:
            words.append(text)


def known_settings() -> dict[tuple[str, str], Explained]:
    """By section and key; the hints of any table are one setting, and so are the privacy rules of any template."""
    found = [each for file in ("config.toml", "example.secrets.toml") for each in explained(file)]
    grouped = {(SOURCE, name): each for name, head in TABLES.items() for each in found if each.section.startswith(head)}
    plain = {(e.section, e.key): e for e in found if not e.section.startswith(tuple(TABLES.values()))}
    return {**plain, **grouped}


def settings() -> str:
    known = known_settings()
    own = [
        (
            f"`{name}`",
            _values(field),
            "required" if field.is_required() else _default(field),
            f"`{_variable(SOURCE, name)}`",
            known[SOURCE, name].meaning,
        )
        for name, field in Settings.model_fields.items()
    ]
    others = [
        (f"`{key}`", f"`[{section}]`", f"`{_variable(section, key)}`", each.meaning)
        for (section, key), each in known.items()
        if section != SOURCE
    ]
    own_table = _table(("key", "values", "default", "environment variable", "meaning"), own)
    other_table = _table(("key", "section", "environment variable", "meaning"), others)
    dlt_table = _table(("variable", "value"), [(f"`{name}`", f"`{value}`") for name, value in DLT_DEFAULTS.items()])
    return SETTINGS_PAGE.format(source=SOURCE, own=own_table, others=other_table, dlt=dlt_table)


def _variable(section: str, key: str) -> str:
    return "__".join([*section.split("."), key]).upper()


def _values(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(field.annotation))
    bounds = {type(each): each for each in field.metadata}
    if Gt in bounds:
        return f"more than {bounds[Gt].gt}"
    if Ge in bounds:
        return f"{bounds[Ge].ge} to {bounds[Le].le}" if Le in bounds else f"{bounds[Ge].ge} or more"
    if field.annotation is bool:
        return "`true`, `false`"
    if "tuple" in str(field.annotation):
        return "a list of texts"
    return "a table" if field.default_factory else "text"


def _default(field: FieldInfo) -> str:
    return "none" if field.default is None or field.default_factory else f"`{json.dumps(field.default)}`"


def tables() -> str:
    parts = []
    for name, summary in sources._TABLES.items():
        schema = RECORDS_SCHEMA if name == RECORDS else SYSTEM_SCHEMAS[name]
        parts += [f"## `{name}`", "", summary, ""]
        parts += [_columns(schema, {**sources._COLUMNS.get(name, {}), **MEANINGS.get(name, {})}), ""]
    layout = _imaginary()
    views, _ = ready_views(layout)
    standing = [(f"`{view.name}`", view.summary, view.grain) for view in views if view.name != layout.typed[0].view]
    checks = [(f"`{check.name}`", check.summary, check.grain) for check in ready_checks(layout)]
    return TABLES_PAGE.format(
        system="\n".join(parts).rstrip(),
        typed=_columns(TYPED_SCHEMA, sources._TYPED_COLUMNS),
        views=_table(("view", "answers", "a row is"), standing),
        checks=_table(("check", "finds", "a row is"), checks),
    )


def _columns(schema: pa.Schema, words: Mapping[str, str]) -> str:
    words = {LOAD_ID: LOADED, **words}
    rows = [(f"`{each.name}`", _type(each.type), words[each.name]) for each in schema]
    return _table(("column", "type", "meaning"), rows)


def _type(kind: pa.DataType) -> str:
    return next((name for fits, name in ARROW if fits(kind)), "text")


def _imaginary() -> Layout:
    """A warehouse with one typed table: some views and checks are written only where there is one."""
    typed = TypedTable("records_x", "x", "x", (TypedField("f", "f__misfit", "f", "f", "text", ()),), ("_record_slug",))
    return Layout("d", "duckdb", {name: {} for name in (*SYSTEM_SCHEMAS, RECORDS, typed.table)}, (typed,))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *rows])


def limits() -> str:
    rows = []
    for name, kind in get_type_hints(Limits, include_extras=True).items():
        limit = kind.__metadata__[0]
        quick = getattr(QUICK_LIMITS, name)
        usual = getattr(LIMITS, name)
        shown = _amount(name, usual) if quick == usual else f"{_amount(name, usual)} (`check`, `preview`: {quick:g} s)"
        rows.append((f"`{name}`", shown, limit.on, limit.beyond))
    return LIMITS_PAGE.format(limits=_table(("limit", "value", "on", "beyond it"), rows))


def _amount(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / MIB:g} MiB"
    return f"{value:g} s" if name.endswith("_s") else f"{value:,}"


PAGES = {"settings.md": settings, "tables.md": tables, "limits.md": limits}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (CHECKOUT / "docs" / name).write_text(write(), encoding="utf-8")
