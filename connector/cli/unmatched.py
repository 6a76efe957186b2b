"""Find hints, privacy rules and names of templates that match nothing loaded: they are probably misspelt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.models import Import
from connector.nearest import suggest_known
from connector.run.choice import Choice
from connector.settings import RunScope, Settings
from connector.text import composed
from connector.transform.privacy import ANY_TEMPLATE, METADATA, unread
from connector.transform.privacy_rules import PATTERN, Section
from connector.warehouse import Warehouse
from connector.warehouse.history_tables import names_of_templates
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.state import load_state
from connector.warehouse.tables import FIELDS, IMPORTS

_JSON = ("json", "overflowed", None)  # types of fields below which there may be paths that sync_fields does not show


def unmatched_hints(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each hint that matches no column; none before the first load, when nothing could match."""
    if not settings.hints or not settings.typed or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        if FIELDS not in connection.columns():
            return []
        rows = connection.query(f"SELECT table_name, column_name, path FROM {connection.name(FIELDS)}").to_pylist()
    known: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        known[row["table_name"]] |= {row["column_name"], row["path"]}
    return [*_unmatched(settings, known)] if known else []


def _unmatched(settings: Settings, known: dict[str, set[str]]) -> Iterator[str]:
    for table, hints in settings.hints.items():
        if table == IMPORTS:
            continue
        if table not in known:
            yield f"The hints for {table} match no table: {suggest_known(table, known)}"
            continue
        for column in hints:
            if column not in known[table]:
                yield f"The hint for {table}.{column} matches no column: {suggest_known(column, known[table])}"


def unmatched_templates(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each template with privacy rules, or named by `history`, that no import has or had.

    Return none before the first load, when nothing could match.
    """
    ruled = settings.protection.templates
    kept = settings.history if not isinstance(settings.history, bool) else ()
    if not (ruled or kept) or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        dataset = inspect_dataset(connection)
        if not {"template__slug", "template__name"} <= dataset.columns.get(IMPORTS, {}).keys():
            return []
        templates = names_of_templates(connection, dataset)
    known = {name for slug, names in templates.items() for name in (slug, *names)} - {""}
    misspelt = settings.protection.misspelt((slug, name) for slug, names in templates.items() for name in names)
    rules = (
        unread(n, misspelt[n])
        if n in misspelt
        else f"The privacy rules for {n} match no template: {suggest_known(n, known)}"
        for n in ruled
        if n not in known
    )
    names = (
        f"history names {n}, which no template is called: {suggest_known(n, known)}" for n in kept if n not in known
    )
    return [*rules, *names]


def templates_left_out(pipeline: Pipeline, settings: Settings, imports: Sequence[Import]) -> Set[str]:
    """Return the slugs of templates that a run does not read because the settings name them as they were called before.

    They are none before the first load.
    """
    warehouse = Warehouse(pipeline)
    if not warehouse.exists():
        return frozenset()
    with warehouse.connect() as connection:
        state = load_state(connection)
    choice = Choice(settings, RunScope())
    names = {i.template_slug: i.template_name for i in imports if i.template_slug is not None}
    former = choice.left_out_by_former_name(imports, choice.left_out_by_name(imports, state))
    return choice.suspect_rules(names, names, state).templates | former.keys()


def unmatched_paths(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each path of a privacy rule that no loaded field has, as far as `sync_fields` can tell.

    Fields that `drop` names or `allow` leaves out are not in `sync_fields`, so such a rule is reported only if a field
    differs from it by case or blanks alone. Return none before the first load, when nothing could match.
    """
    if not settings.protection or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        dataset = inspect_dataset(connection)
        if FIELDS not in dataset.columns:
            return []
        sql = f"SELECT template_slug, table_name, path, data_type FROM {connection.name(FIELDS)}"
        fields = connection.query(sql).to_pylist()
        names = names_of_templates(connection, dataset)
    found = []
    for title, section in sorted(settings.protection.sections.items()):
        known = {
            row["path"].removeprefix("metadata.") if title == METADATA else row["path"]: row["data_type"] in _JSON
            for row in fields
            if _is_of(title, row, {row["template_slug"], *names[row["template_slug"] or ""]})
        }
        if known:
            found += [f"privacy.{title}: {sentence}" for sentence in misspelt(section, known, shown=title != METADATA)]
    return found


def _is_of(title: str, field: Mapping[str, Any], names: Collection[str | None]) -> bool:
    """Return whether the section with this title may concern the field, whose template has these names."""
    if field["table_name"] == IMPORTS:
        return title == METADATA
    return title == ANY_TEMPLATE or (title != METADATA and title in names)


def misspelt(section: Section, known: Mapping[str, bool], *, shown: bool) -> Iterator[str]:
    """Yield a sentence for each path of the section that is probably misspelt.

    `known` maps the paths of fields to whether there may be more paths below them; `shown` tells whether fields under a
    rule that keeps them are among these.
    """
    stays = {path for path, action in section.rules.items() if action.kind != "drop"} | set(section.allow or ())
    for path in sorted({*section.rules, *(section.allow or ())}):
        if path.startswith(PATTERN) or any(_reaches(path, each, below=below) for each, below in known.items()):
            continue
        free = (each for each in sorted(known) if each not in section.rules)
        near = next((each for each in free if _reaches(_folded(path), _folded(each), below=False)), None)
        if near is not None:
            yield f"the path {path!r} matches no field, and {near!r} differs from it only by case or blanks"
        elif shown and path in stays:
            yield f"the path {path!r} matches no field: {suggest_known(path, known)}"


def _folded(path: str) -> str:
    return "".join(composed(path).casefold().split())


def _reaches(rule: str, path: str, *, below: bool) -> bool:
    """Return whether the rule applies to the field at `path`, to one that contains it, or maybe to one inside it."""
    rule, path = composed(rule), composed(path)
    if rule == path:
        return True
    wanted, steps = rule.split("."), path.split(".")
    alike = all(want in ("*", step) for want, step in zip(wanted, steps, strict=False))
    return alike and (len(wanted) <= len(steps) or below)


def unmatched(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return the sentences of all three functions."""
    return [
        *unmatched_hints(warehouse, settings),
        *unmatched_templates(warehouse, settings),
        *unmatched_paths(warehouse, settings),
    ]
