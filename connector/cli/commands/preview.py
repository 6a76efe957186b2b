"""`importer-sync preview`: imports, templates and fields with types, with sample rows; loads nothing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from connector.cli.options import whole
from connector.cli.output import Output
from connector.cli.service_call import ask
from connector.cli.source_settings import load_settings
from connector.errors import ConfigError
from connector.models import Import, ImportPage, Record
from connector.service.client import ServiceClient
from connector.transform.flatten import flatten
from connector.transform.naming import display_path
from connector.transform.schema import TableSchema

EXAMPLES = ("importer-sync preview", "importer-sync preview --template customers --rows 2")
IMPORTS_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--template", metavar="NAME-OR-SLUG", help="only this template")
    parser.add_argument("--rows", type=whole(0), default=3, metavar="N", help="sample rows of each template (3)")


def run(arguments: argparse.Namespace, output: Output) -> int:
    async def look(client: ServiceClient) -> tuple[ImportPage, list[tuple[Import, list[Record]]]]:
        page = await client.list_imports(1)
        wanted = [i for i in page.imports if arguments.template in (None, i.template_slug, i.template_name)]
        samples = [(i, (await client.list_records(i.slug, 1)).records) for i in _one_of_each(wanted)]
        return page, samples

    page, samples = ask(load_settings(), look)
    if arguments.template is not None and not samples:
        raise ConfigError(f"No import on the first page has the template {arguments.template!r}.")
    templates = [_template(import_, records, arguments.rows) for import_, records in samples]
    output.document(
        {"imports": [_shown(i) for i in page.imports], "more_pages": page.size >= 100, "templates": templates}
    )
    _tell(output, page, templates)
    return 0


def _one_of_each(imports: list[Import]) -> list[Import]:
    """For each template the import with the most rows."""
    largest: dict[str | None, Import] = {}
    for import_ in imports:
        known = largest.get(import_.template_slug)
        if known is None or import_.row_count > known.row_count:
            largest[import_.template_slug] = import_
    return list(largest.values())


def _shown(import_: Import) -> dict[str, Any]:
    return {
        "slug": import_.slug,
        "status": import_.status,
        "row_count": import_.row_count,
        "updated_at": import_.updated_at.isoformat(),
        "template": import_.template_name,
    }


def _template(import_: Import, records: list[Record], sampled: int) -> dict[str, Any]:
    flat = flatten([record.data for record in records], TableSchema("preview"))
    fields = []
    for keys, field in flat.schema.fields.items():
        columns = [flat.columns[c].to_pylist() for c in field.columns() if c in flat.columns]
        cells = zip(*columns, strict=True) if columns else [()] * len(records)
        values = [next((v for v in row if v is not None), None) for row in cells]
        others = [kind for has, kind in ((field.has_double, "double"), (field.has_text, "text")) if has]
        fields.append(
            {
                "path": display_path(keys),
                "column": field.column,
                "type": field.type,
                "also": others,
                "nulls": len(records) - sum(v is not None for v in values),
                "samples": values[:sampled],
            }
        )
    return {
        "name": import_.template_name,
        "slug": import_.template_slug,
        "sampled_import": import_.slug,
        "sampled_rows": len(records),
        "fields": fields,
        "rows": [_parsed(record.data) for record in records[:sampled]],
    }


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")


def _tell(output: Output, page: ImportPage, templates: list[dict[str, Any]]) -> None:
    output.table(
        f"{len(page.imports)} imports on the first page" + (" of several" if page.size >= 100 else ""),
        ("slug", "status", "rows", "updated at", "template"),
        [tuple(_shown(i).values()) for i in page.imports[:IMPORTS_SHOWN]],
    )
    for template in templates:
        samples = max((len(f["samples"]) for f in template["fields"]), default=0)
        output.table(
            f"{template['name'] or 'no template'}: {len(template['fields'])} fields in the first "
            f"{template['sampled_rows']} rows of import {template['sampled_import']}",
            ("field", "column", "type", "blank", *(f"row {n + 1}" for n in range(samples))),
            [
                (f["path"], f["column"], " / ".join([f["type"] or "?", *f["also"]]), f["nulls"], *f["samples"])
                for f in template["fields"]
            ],
        )
    output.say("Nothing was loaded; `importer-sync run` loads it.")
