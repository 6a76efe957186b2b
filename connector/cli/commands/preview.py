"""`importer-sync preview`: show imports, templates and fields with types, with sample rows; load nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connector.cli.options import whole
from connector.cli.output import Output, amount
from connector.cli.service_call import OF_IMPORTS, OF_RECORDS, ask, first_page, longest_page
from connector.cli.source_settings import load_settings
from connector.errors import ConfigError
from connector.models import Import, ImportPage, Record
from connector.nearest import suggest_known
from connector.service.client import ServiceClient
from connector.text import composed
from connector.transform.flatten import flatten
from connector.transform.naming import display_path
from connector.transform.privacy import unread
from connector.transform.schema import TableSchema

EXAMPLES = ("importer-sync preview", "importer-sync preview --template customers --rows 2")
IMPORTS_SHOWN = 10
SAMPLE = 24  # characters of a value


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--template", metavar="NAME-OR-SLUG", help="only this template")
    parser.add_argument("--rows", type=whole(0), default=3, metavar="N", help="sample rows of each template (3)")


def run(arguments: argparse.Namespace, output: Output) -> int:
    settings = load_settings(arguments.pipeline_name)

    def misspelt_rules(page: ImportPage) -> Mapping[str, Sequence[str]]:
        return settings.protection.misspelt((i.template_slug, i.template_name) for i in page.imports)

    async def look(client: ServiceClient) -> tuple[ImportPage, list[tuple[Import, list[Record]]]]:
        _, (convention, page) = await longest_page(lambda per_page: first_page(client, per_page), OF_IMPORTS)
        page = replace(page, imports=client.with_one_name(page.imports))
        left = {name for names in misspelt_rules(page).values() for name in names}
        left.update(renamed(page.imports))
        readable = [i for i in named(page) if left.isdisjoint((i.template_slug, i.template_name))]
        return page, [(i, await sample(client, i.slug, convention.first)) for i in _one_of_each(readable)]

    def renamed(imports: Sequence[Import]) -> Collection[str]:
        """Return the slugs of templates that a run leaves out or does not read, because of a name that they had."""
        if not (settings.protection.templates or settings.exclude_templates):
            return ()
        from connector.cli.configuration import open_pipeline  # only these names need the warehouse
        from connector.cli.unmatched import templates_left_out

        left = templates_left_out(open_pipeline(arguments), settings, imports)
        for slug in sorted(left):
            sentence = (
                f"A run does not read template {slug}: privacy or exclude_templates has a name that it had before."
            )
            output.note(sentence, level="warning", event="template.renamed")
        return left

    async def sample(client: ServiceClient, slug: str, number: int) -> list[Record]:
        _, page = await longest_page(lambda per_page: client.list_records(slug, number, per_page), OF_RECORDS)
        return page.records

    def named(page: ImportPage) -> list[Import]:
        return [
            i
            for i in page.imports
            if (arguments.template is None or composed(arguments.template) in i.template_names)
            and settings.includes(i.template_names)
        ]

    page, samples = ask(settings, look)
    wanted = named(page)
    if arguments.template is not None and not wanted:
        known = {name for i in page.imports for name in (i.template_name, i.template_slug) if name}
        nearest = suggest_known(
            arguments.template, sorted({i.template_name for i in page.imports if i.template_name}) or known
        )
        raise ConfigError(f"No import on the first page has the template {arguments.template!r}: {nearest}")
    templates = [_template(import_, records, arguments.rows) for import_, records in samples]
    shown = {"imports": [_shown(i) for i in wanted], "more_pages": page.size >= 100, "templates": templates}
    output.document(shown, of_data=True)
    _print_result(output, wanted, page.size >= 100, templates)
    for title, names in misspelt_rules(page).items():
        output.note(unread(title, names), level="warning", event="privacy.misspelt")
    return 0


def _one_of_each(imports: list[Import]) -> list[Import]:
    """Return for each template the import with the most rows."""
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
                "blank": len(records) - sum(v is not None and str(v).strip() != "" for v in values),
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


def _first(samples: list[Any]) -> str:
    texts = [_written(value) for value in samples]
    return " · ".join(text if len(text) <= SAMPLE else f"{text[: SAMPLE - 1]}…" for text in texts)


def _written(value: Any) -> str:
    """Return a value as JSON, and a dash for null."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "–" if value is None or not text.strip() else text


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")


def _print_result(output: Output, imports: list[Import], more_pages: bool, templates: list[dict[str, Any]]) -> None:
    rest = len(imports) - IMPORTS_SHOWN
    shown = f", the first {IMPORTS_SHOWN}" if rest > 0 else ""
    output.table(
        f"{amount(len(imports), 'import')} on the first page{' of several' if more_pages else ''}{shown}",
        ("slug", "status", "rows", "updated at", "template"),
        [
            (i.slug, i.status, i.row_count, f"{i.updated_at:%Y-%m-%d %H:%M:%S}", i.template_name)
            for i in imports[:IMPORTS_SHOWN]
        ],
    )
    mixed = False
    for template in templates:
        named = f"{template['name'] or 'no template'}, import {template['sampled_import']}"
        if not template["fields"]:
            output.say(f"{named}: {amount(template['sampled_rows'], 'row')}, no fields", "")
            continue
        mixed = mixed or any(f["also"] for f in template["fields"])
        output.table(
            f"{named}: {amount(len(template['fields']), 'field')} in the first {template['sampled_rows']} rows",
            ("field", "column", "type", "blank", "first values"),
            [
                (f["path"], f["column"], " / ".join([f["type"] or "?", *f["also"]]), f["blank"], _first(f["samples"]))
                for f in template["fields"]
            ],
        )
    if mixed:
        output.say(
            "bool / text: the column is bool, and other values go unchanged to a second column, <column>__v_text. A "
            "hint changes the type: docs/settings.md."
        )
    output.say("Nothing was loaded; `importer-sync run` loads it.")
