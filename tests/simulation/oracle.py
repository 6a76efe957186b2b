"""Check what must hold after any run, and after an undisturbed run (docs/guarantees.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from connector.runs import Status, Tally
from connector.settings import Settings
from connector.transform.width import Width
from tests.simulation.hinting import Hints, given_for
from tests.simulation.holdings import Holdings, Rows, duplicates
from tests.simulation.leaves import at, gives_back, is_scalar, leaves, parse, same, same_json, stored
from tests.simulation.protecting import Protected, Rules, is_protected, named_sections
from tests.simulation.watching import ImportTruth, Row, Watch

OVERFLOWED = "overflowed"
TOLD = frozenset(  # columns that change without a new version, and columns of versions only
    {"_valid_from", "_valid_to", "_change", "_run_id", "_changed_columns", "_ruled_by"}
    | {"_created_at", "_updated_at", "_deleted_at", "_dlt_load_id", "_content_hash"}
)
Content = tuple[tuple[str, str], ...]  # column, value
Snapshot = dict[str, dict[str, Content]]
Fields = dict[tuple[str, ...], dict[str, Any]]


class Broken(AssertionError):
    """A guarantee was violated."""


def require(condition: object, promise: str, *evidence: Any) -> None:
    if not condition:
        raise Broken(f"{promise}: {', '.join(repr(e)[:600] for e in evidence)}")


def none_of(found: Iterable[Any], promise: str) -> None:
    some = sorted(map(repr, found))[:4]
    require(not some, promise, *some)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: the warehouse before and after it; `tally` is None if it was killed.

    `whole` if it reads all imports, `of_some` if all that its settings choose by their status or template; `hidden` are
    not listed.
    """

    before: Holdings
    after: Holdings
    tally: Tally | None
    whole: bool
    settings: Settings
    allow_mass_delete: bool
    of_some: bool = False
    hidden: frozenset[str] = frozenset()

    def reads(self, truth: ImportTruth) -> bool:
        """Return whether it has to find an import: one of the status that is read is listed, or was known at it."""
        status = self.settings.status
        if status is not None:
            known = self.before.by_key("sync_imports", "slug").get(truth.slug, {})
            if truth.shown["status"] != status or (truth.slug in self.hidden and known.get("status") != status):
                return False
        names, chosen = set(truth.shown["template"] or ()), self.settings.templates
        return (chosen is None or not names.isdisjoint(chosen)) and names.isdisjoint(
            self.settings.exclude_templates or ()
        )


def check_run(ran: Ran, watch: Watch) -> None:
    """Check what must hold after every run, whatever happened in it."""
    _check_keys(ran.after)
    require(ran.before.foreign == ran.after.foreign, "what is the user's own is not touched")
    if ran.settings.deletes == "mirror":
        marked = ran.after.tombstones() - ran.before.tombstones()
        none_of(marked - {row["slug"] for row in ran.after.of_table("imports")}, "a row that vanished is not kept")
    _check_deletes(ran, watch)
    if ran.tally is None:
        return
    _check_runs(ran.after, ran.tally)
    if (ran.whole or ran.of_some) and ran.tally.status is Status.succeeded:
        _check_succeeded(ran, watch)
    _check_nothing_lost(ran, watch)


def _check_keys(after: Holdings) -> None:
    keys = {"records": "slug", "imports": "slug", "sync_imports": "slug", "sync_runs": "run_id"}
    for table, key in keys.items():
        none_of(duplicates(row[key] for row in after.of_table(table)), f"{table} has each {key} once")
    fields = ((row["table_name"], row["column_name"]) for row in after.of_table("sync_fields"))
    none_of(duplicates(fields), "sync_fields has each column once")
    for table, rows in after.typed.items():
        none_of(duplicates(row["_record_slug"] for row in rows), f"{table} has each record once")
        none_of((r for r in rows if not r["_record_slug"]), f"{table} holds no placeholder")


def _check_deletes(ran: Ran, watch: Watch) -> None:
    """Check that the run deleted only imports and records that were missing at some time during it."""

    def deleted(holdings: Holdings) -> set[str]:
        rows = {r["slug"] for r in holdings.of_table("imports") if r["_deleted_at"] is not None}
        return rows | {r["slug"] for r in holdings.of_table("sync_imports") if r.get("state") == "deleted"}

    fresh = deleted(ran.after) - deleted(ran.before)
    none_of(fresh - watch.absent, "an import that is there is not deleted")
    live = {r["slug"] for table in ("imports", "sync_imports") for r in ran.before.of_table(table)} - deleted(
        ran.before
    )
    # a killed first load may have left rows of imports about which nothing else is known yet
    live |= {row["import_slug"] for row in ran.before.live_records().values()}
    live |= {row["_import_slug"] for rows in ran.before.live_typed().values() for _, row in rows}
    limit = 1.0 if ran.allow_mass_delete else ran.settings.mass_delete_limit
    require(len(fresh) <= limit * len(live | fresh), "no more vanish in a run than the limit allows", len(fresh), live)
    seen = {r["slug"] for r in ran.before.of_table("imports")}
    kept = {r["slug"] for r in ran.after.of_table("imports")}
    none_of(seen - kept, "imports has one row per import ever seen")


def _check_runs(after: Holdings, tally: Tally) -> None:
    rows = {row["run_id"]: row for row in after.of_table("sync_runs")}
    none_of((r["run_id"] for r in rows.values() if r["status"] == "running"), "no run is left as running")
    if tally.refused:
        require(tally.run_id not in rows, "a backfill that is refused is no run", tally.run_id)
    elif rows or tally.load_ids:
        require(tally.run_id in rows, "a run has its row", tally.run_id)
        shown = rows[tally.run_id]["status"]
        require(shown == tally.status, "a run's row has its status", shown, tally.status)


def check_promise(ran: Ran) -> None:
    """Check that a full backfill has read each import, or that the next run will read it.

    It does so without a mark if the import was never read, or if it is not known at which version.
    """
    after = ran.after.by_key("sync_imports", "slug")
    for before in ran.before.of_table("sync_imports"):
        row = after[before["slug"]]
        due = row.get("due") is not None or row.get("updated_at") is None
        kept = row["_dlt_load_id"] != before["_dlt_load_id"] or due or before.get("state") in ("deleted", "excluded")
        require(kept, "what a backfill asked for is read, or asked for still", row)


def _unsettled(ran: Ran, watch: Watch) -> set[str]:
    """Return imports that changed in this run and that the next one reads again, because the change may not show."""
    due = {row["slug"] for row in ran.after.of_table("sync_imports") if row.get("due") == "racy"}
    return due & watch.touched_imports


def _check_succeeded(ran: Ran, watch: Watch) -> None:
    """Check that everything that existed during the whole run is in the warehouse now."""
    held = ran.after.by_key("imports", "slug")
    # a row edited before the run without a change of its import is only found by a recheck
    exact = watch.service.switches.edit_moves_import
    unsettled = _unsettled(ran, watch)
    fields = _fields_by_table(ran.after).get("imports", {})
    steady = {slug: truth for slug, truth in watch.steady_imports().items() if ran.reads(truth)}
    for slug, truth in steady.items():
        require(slug in held, "succeeded has every import", slug)
        _check_import(held[slug], truth, fields, exact=exact and slug not in unsettled)
    records = {s: row for s, row in watch.steady_records().items() if row.import_slug not in unsettled}
    if ran.of_some:
        records = {s: row for s, row in records.items() if row.import_slug in steady}
    _check_records(ran, records, steady, "succeeded has every record", exact=exact)


def _check_records(
    ran: Ran, expected: Mapping[str, Row], imports: Mapping[str, ImportTruth], promise: str, *, exact: bool = True
) -> None:
    if ran.settings.raw:
        records = ran.after.live_records()
        for slug, row in expected.items():
            require(slug in records, promise, slug, row)
            if exact:
                _check_record(records[slug], row, imports.get(row.import_slug))
    if ran.settings.typed:
        ledger = ran.after.by_key("sync_imports", "slug")
        excluded = {slug for slug, row in ledger.items() if row.get("state") == "excluded"}  # their rows may be stale
        places = ran.after.live_typed()
        for slug in expected:
            found = [(table, row) for table, row in places.get(slug, []) if row["_import_slug"] not in excluded]
            require(len(found) == 1, f"{promise}, in one typed table", slug, [table for table, _ in found])


def _check_nothing_lost(ran: Ran, watch: Watch) -> None:
    """Check that correct rows which did not change are still correct after the run, unless it reports otherwise."""
    if not ran.settings.raw:
        return
    unproven = {
        row["slug"]
        for row in ran.after.of_table("sync_imports")
        if row.get("state") == "unreconciled" or "another import" in (row.get("error") or "")
    }
    # it may have failed besides, because other rows of it came with another import
    assert ran.tally is not None
    told = [problem for problem in ran.tally.problems if " does not reconcile: " in problem]
    unproven |= {slug for slug in watch.truth if any(each.startswith(f"Import {slug} ") for each in told)}
    before, after = ran.before.live_records(), ran.after.live_records()
    unsettled = _unsettled(ran, watch)
    for slug, row in watch.steady_records().items():
        if row.import_slug in unsettled:
            continue
        known = slug in before and _holds(before[slug]["data"], row)
        if known and row.import_slug not in unproven:
            if slug not in after and before[slug]["import_slug"] != row.import_slug:
                # it moved between two runs, and this one read only the import that it left
                require(_will_be_read(ran, watch, row.import_slug), "a moved row is read next", slug, row)
                continue
            require(slug in after, "no row is lost", slug, row)
            require(_holds(after[slug]["data"], row), "no row is spoiled", slug, row, after[slug])


def _will_be_read(ran: Ran, watch: Watch, slug: str) -> bool:
    """Return whether this run did not read an import in its present version, and tells so, and the next one reads it.

    Only a run over some of the imports may have `succeeded` without one of the others.
    """
    assert ran.tally is not None
    row, now = ran.after.by_key("sync_imports", "slug").get(slug), watch.truth.get(slug)
    succeeded = (ran.whole or ran.of_some) and ran.tally.status is Status.succeeded
    if succeeded and now is not None and slug not in watch.touched_imports and ran.reads(now):
        return False
    if row is None or now is None or row.get("state") != "synced":
        return True
    return row.get("due") is not None or _fingerprint(row) != _shown_fingerprint(now)


def _holds(data: str, row: Row) -> bool:
    return same_json(data, parse(row.data)) if isinstance(row.data, Protected) else data == row.data


def _check_import(held: Mapping[str, Any], truth: ImportTruth, fields: Fields, *, exact: bool = True) -> None:
    shown = truth.shown
    template = shown["template"] or (None, None)
    expected = {
        "row_count": shown["row_count"],
        "status": shown["status"],
        "created_at": truth.created_at,
        "updated_at": truth.updated_at,
        "template__slug": template[0],
        "template__name": template[1],
        "_deleted_at": None,
    }
    found = {name: held[name] for name in expected}
    require(found == expected, "an import is as the service shows it", truth.slug, found, expected)
    for name in ("metadata", "extra", *["records_metadata"] * exact):
        received = None if shown[name] is None else parse(json.dumps(shown[name]))
        as_received = held[name] is None if received is None else same_json(held[name] or "", received)
        require(as_received, f"{name} is as received", truth.slug, held[name], shown[name])
    free = {name: shown[name] for name in ("metadata", "extra") if shown[name] is not None}
    scalars: dict[tuple[str, ...], Any] = {
        (name, key): value
        for name, members in parse(json.dumps(free)).items()
        for key, value in members.items()
        if not isinstance(value, dict | list)
    }
    for keys, value in scalars.items():
        require(keys in fields, "every scalar of metadata has its field", truth.slug, keys)
        require(gives_back(held, fields[keys], value), "every scalar of metadata has its column", keys, value, held)
    for keys, known in fields.items():
        if keys not in scalars:
            require(not stored(held, known)[0], "an import has no values of its own", keys, held)


def _check_record(held: Mapping[str, Any], row: Row, truth: ImportTruth | None) -> None:
    times = held["created_at"], held["updated_at"]
    data = row.data if _holds(held["data"], row) else held["data"]
    found = Row(held["import_slug"], data, *times, held["sort"], held["extra"])
    require(found == row, "a record is as the service shows it", held["slug"], found, row)
    if truth is not None:
        require(held["template_slug"] == truth.template_slug, "a record has its import's template", held["slug"])


def check_equal(ran: Ran, watch: Watch, all_hints: Sequence[Hints] = ({},)) -> None:
    """Check after an undisturbed run that the warehouse equals the service, row by row, and has nothing else.

    A table that is not written any more may lack rows; those it has are right. `all_hints` are those of each run.
    """
    truth = watch.truth
    after = ran.after
    imports = after.by_key("imports", "slug")
    live = {slug for slug, row in imports.items() if row["_deleted_at"] is None}
    require(live == set(truth), "the live imports are those of the service", live ^ set(truth))
    known = _fields_by_table(after).get("imports", {})
    for slug, each in truth.items():
        _check_import(imports[slug], each, known)
    expected = {slug: row for each in truth.values() for slug, row in each.rows.items()}
    _check_records(ran, expected, truth, "every record is there")
    none_of(set(after.live_records()) - set(expected), "no record is there that the service has not")
    for slug, held in after.live_records().items() if not ran.settings.raw else ():
        _check_record(held, expected[slug], truth[expected[slug].import_slug])
    none_of(set(after.live_typed()) - set(expected), "no typed row is there that the service has not")
    _check_typed(after, truth, all_hints)
    _check_dictionary(after, {slug: parse(row.data) for slug, row in expected.items()}, all_hints)
    _check_ledger(ran, truth)


def _check_ledger(ran: Ran, truth: Mapping[str, ImportTruth]) -> None:
    ledger = ran.after.by_key("sync_imports", "slug")
    for slug, each in truth.items():
        require(slug in ledger, "every import is in the ledger", slug)
        row = ledger[slug]
        count = len(each.rows) + each.spoiled
        states = {"synced"} if each.shown["row_count"] == count else {"synced", "unreconciled"}
        require(row["state"] in states, "the ledger has the state of each import", slug, row, count)
        if each.shown["row_count"] != count and each.shown["status"] == "completed" and _was_read(ran, row):
            require(row["state"] == "unreconciled", "a wrong row_count is reported", slug, row, count)
        require(row["records_loaded"] == len(each.rows), "the ledger counts the rows", slug, row)
        known, shown = _fingerprint(row), _shown_fingerprint(each)
        require(known == shown, "the ledger has the fingerprint", slug, known, shown)
    for slug, row in ledger.items():
        require(slug in truth or row["state"] == "deleted", "an import that is gone is deleted", row)


def _fingerprint(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(map(row.get, ("updated_at", "row_count", "status", "template_slug")))  # one may be dropped


def _shown_fingerprint(truth: ImportTruth) -> tuple[Any, ...]:
    return truth.updated_at, truth.shown["row_count"], truth.shown["status"], truth.template_slug


def _was_read(ran: Ran, row: Mapping[str, Any]) -> bool:
    return ran.tally is not None and row["run_id"] == ran.tally.run_id and ran.settings.reconcile != "off"


def _fields_by_table(after: Holdings) -> dict[str, Fields]:
    fields: dict[str, Fields] = {}
    for known in after.of_table("sync_fields"):
        fields.setdefault(known["table_name"], {})[tuple(json.loads(known["keys"]))] = known
    return fields


def _check_typed(after: Holdings, truth: Mapping[str, ImportTruth], all_hints: Sequence[Hints]) -> None:
    """Check the typed rows that there are."""
    fields = _fields_by_table(after)
    given = {
        table: {keys: given_for(all_hints, known) for keys, known in by_keys.items()}
        for table, by_keys in fields.items()
    }
    for table, by_keys in fields.items():
        for keys, known in by_keys.items():
            hint, *others = sorted(given[table][keys])
            fits = known["data_type"] in (None, OVERFLOWED, hint.partition(":")[0])
            require(others or not hint or fits, "a hint gives a column its type", known, hint)
    places = after.live_typed()
    tables: dict[str | None, set[str]] = {}
    for each in truth.values():
        for slug, row in each.rows.items():
            if slug not in places:
                continue
            table, typed = places[slug][0]
            tables.setdefault(each.template_slug, set()).add(table)
            head = (typed["_import_slug"], typed["_sort"], typed["_created_at"], typed["_updated_at"])
            wanted = (row.import_slug, row.sort, row.created_at, row.updated_at)
            require(head == wanted, "a typed row has its record's columns", slug, head, wanted)
            _check_leaves(typed, fields.get(table, {}), row, given.get(table, {}))
    for template, several in tables.items():
        require(len(several) == 1, "a template has one table", template, several)
    none_of(duplicates(next(iter(t)) for t in tables.values()), "a table has one template")


def _check_leaves(
    typed: Mapping[str, Any],
    fields: Fields,
    row: Row,
    given: Mapping[tuple[str, ...], Collection[str]],
) -> None:
    values = dict(leaves(parse(row.data)))
    rest = _rest(typed, fields)
    for keys, value in values.items():
        moved, there = at(rest, keys)
        if moved:
            require(same(there, value), "what has no column is as received", keys, value, typed)
            require(not _has_column(typed, fields.get(keys)), "a value is in one place", keys, typed)
            continue
        require(keys in fields, "every field is in sync_fields or in _more", keys, row)
        back = gives_back(typed, fields[keys], value, given[keys])
        require(back, "a typed row gives back its values", keys, value, typed)
    for keys, field in fields.items():
        if keys and keys not in values:
            require(not _has_column(typed, field), "a typed row has no values of its own", keys, typed)
    none_of(set(dict(leaves(rest))) - set(values), "_more has what the row has")


def _rest(typed: Mapping[str, Any], fields: Mapping[tuple[str, ...], dict[str, Any]]) -> dict[str, Any]:
    text = typed.get(fields[()]["column_name"]) if () in fields else None
    return {} if text is None else dict(parse(text))


def _has_column(typed: Mapping[str, Any], field: Mapping[str, Any] | None) -> bool:
    return field is not None and field["data_type"] != OVERFLOWED and stored(typed, field)[0]


def check_width(after: Holdings, width: Width) -> None:
    """Check that no typed table exceeds its limit of columns, and only so many of the other fields are listed."""
    listed = Counter(f["table_name"] for f in after.of_table("sync_fields") if f["data_type"] == OVERFLOWED)
    none_of(duplicates((f["table_name"], f["keys"]) for f in after.of_table("sync_fields")), "a field has one place")
    none_of((table for table, count in listed.items() if count > width.listed), "few fields without column are listed")
    columns: Counter[str] = (
        Counter()
    )  # a crashed run may have left other columns, which the next one uses for the same fields
    for field in after.of_table("sync_fields"):
        if field["data_type"] not in (None, OVERFLOWED) and field["keys"] != "[]":
            columns[field["table_name"]] += 1 + field["has_text"] + field["has_double"]
    wide = {table: count for table, count in columns.items() if table != "imports" and count > width.columns}
    none_of(wide.items(), "a table has no more columns than it may")


def _check_dictionary(after: Holdings, data: Mapping[str, Any], all_hints: Sequence[Hints]) -> None:
    """Check the counts; scalars that a text column takes are no conflicts if its hint was text when they were read."""
    for field in after.of_table("sync_fields"):
        table = field["table_name"]
        if table == "imports" or field["data_type"] == OVERFLOWED:
            continue
        rows = [row for row in after.typed.get(table, []) if row["_deleted_at"] is None]
        seen = Counter(stored(row, field) for row in rows)
        values = seen[True, True] + seen[True, False]
        kept = sum(is_scalar(at(data[row["_record_slug"]], tuple(json.loads(field["keys"])))[1]) for row in rows
                   if field["data_type"] == "text" and _in_column(row, field))  # fmt: skip
        given = given_for(all_hints, field)
        fewest, most = seen[True, True] + kept * ("text" not in given), seen[True, True] + kept * (given != {"text"})
        conflicts = min(max(field["conflict_count"] or 0, fewest), most)
        wanted = (values, len(rows) - values, conflicts)
        counted = (field["value_count"], field["null_count"], field["conflict_count"])
        require(counted == wanted, "sync_fields counts what is there", table, field["path"], counted, wanted)


def _in_column(row: Mapping[str, Any], field: Mapping[str, Any]) -> bool:
    return row.get(field["column_name"]) is not None


def check_kept(ran: Ran, ever: Mapping[str, str], ever_typed: Iterable[str], truth: Mapping[str, ImportTruth]) -> None:
    """Check with `deletes = keep` that all rows ever loaded exist, marked once the service no longer has them."""
    after = ran.after
    live = {slug for each in truth.values() for slug in each.rows}
    held = after.by_key("records", "slug")
    for slug, data in ever.items():
        require(slug in held, "a kept record is there", slug)
        if slug not in live:
            require(held[slug]["_deleted_at"] is not None, "a vanished record is marked", slug)
            require(held[slug]["data"] == data, "a vanished record is as it was", slug, held[slug])
    typed: dict[str, list[bool]] = {}
    for _, row in _each(after.typed):
        typed.setdefault(row["_record_slug"], []).append(row["_deleted_at"] is None)
    for slug in ever_typed:
        require(slug in typed, "a kept record is in a typed table", slug)
        # a record that moved to another template stays in the table of the earlier one, marked
        there = (slug in live,) if ran.settings.typed else (slug in live, 0)
        require(sum(typed[slug]) in there, "a vanished typed row is marked", slug)


def check_versions(
    after: Holdings, *, all_noted: bool = True, but: Collection[str] = (), of: Collection[str] | None = None
) -> dict[str, frozenset[str]]:
    """Check, once everything is recorded, that the current versions are the rows and no versions overlap.

    Rows with the keys in `but` may differ from their versions, and those of other tables than `of`; the imports of such
    records may wait to be recorded. Return table → those of `but` that differ.
    """
    now = snapshot(after)
    waiting, imports = dict[str, frozenset[str]](), set[str]()
    for name, rows in after.versions.items():
        table, key = name.removesuffix("_history"), "slug" if name.startswith("imports") else "_record_slug"
        still = [row for row in rows if row["_valid_to"] is None]
        none_of(duplicates(row[key] for row in still), "a record has one current version")
        if of is None or table in of:
            unlike = dict(_differences({row[key]: _content(row) for row in still}, now.get(table, {})))
            none_of(((k, unlike[k]) for k in {*unlike} - {*but}), f"the current versions are the rows of {table}")
            waiting[table] = frozenset(unlike)
            # those in `imports` are compared by each run, whether their import is recorded or not
            pairs = (*still, *after.typed.get(table, ()))
            imports |= {row["_import_slug"] for row in pairs if "_import_slug" in row and row[key] in unlike}
        lasting = [row for row in rows if row["_valid_from"] != row["_valid_to"]]
        for before, after_it in pairwise(sorted(lasting, key=lambda row: (row[key], row["_valid_from"]))):
            if before[key] == after_it[key]:
                ended = before["_valid_to"] is not None and before["_valid_to"] <= after_it["_valid_from"]
                require(ended, "versions do not overlap", before, after_it)
    due = {r["slug"] for r in after.of_table("sync_imports") if r.get("history") != r["_dlt_load_id"]}
    none_of(due - imports if all_noted and of is None else (), "what was loaded is recorded")
    return waiting


def _check_waiting(ran: Ran, waiting: Mapping[str, Collection[str]], ruled: Mapping[str, Collection[str]]) -> None:
    """Check that versions that wait for their rows neither end in the run nor lose a value.

    `waiting` are their keys in each table that is recorded, `ruled` the columns that a rule may empty.
    """
    for table, keys in waiting.items():
        name, key = f"{table}_history", "slug" if table == "imports" else "_record_slug"
        still = {r[key]: r for r in ran.after.versions.get(name, ()) if r["_valid_to"] is None}
        for was in ran.before.versions.get(name, ()):
            if was["_valid_to"] is None and was[key] in keys:
                now = still.get(was[key], {})
                require(now.get("_valid_from") == was["_valid_from"], f"a version of {table} waits", was, now)
                lost = {*_without(_content(was), ruled.get(table, ()))} - {*_content(now)}
                none_of(lost, f"a version of {table} that waits keeps its values")


def _check_current(
    ran: Ran, all_rules: Sequence[Rules], not_whole: frozenset[str], *, all_noted: bool
) -> frozenset[str]:
    """Check the current versions, and that those of rows that were not read wait; return the keys that differ."""
    assert ran.tally is not None
    # a run that is about such imports names them, and has not succeeded
    read = (ran.whole or ran.of_some) and ran.tally.status is Status.succeeded
    imports, partly = (frozenset[str](), frozenset[str]()) if read else _unread_imports(ran)
    but = not_whole | imports | partly | (frozenset[str]() if read else _under_other_rules(ran))
    unlike = check_versions(ran.after, all_noted=all_noted, but=but, of=recorded_tables(ran))
    unread = {**_unread_records(ran), "imports": imports}
    ruled = _ruled_columns(ran.after, all_rules) if any(each != all_rules[-1] for each in all_rules) else {}
    _check_waiting(ran, {table: keys | unread.get(table, frozenset()) for table, keys in unlike.items()}, ruled)
    return frozenset[str]().union(*unlike.values())


def recorded_tables(ran: Ran) -> frozenset[str] | None:
    """Return the tables of which a run certainly recorded versions; None for all."""
    chosen = ran.settings.history
    if isinstance(chosen, bool) and (ran.settings.typed or not chosen):
        return None if chosen else frozenset()
    after, named = ran.after, set() if isinstance(chosen, bool) or not ran.settings.typed else set(chosen)
    names = [*after.of_table("imports"), *after.versions.get("imports_history", [])]
    slugs = {row["template__slug"] for row in names if row["template__name"] in named or row["template__slug"] in named}
    tables = {(row["table_name"], row["template_slug"]) for row in after.of_table("sync_imports")}
    return frozenset(table for table, slug in tables if table and slug in slugs) | {"imports"}


def _differences(
    found: Mapping[str, Content], wanted: Mapping[str, Content], but: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield key → columns whose values differ."""
    for key in sorted({*found, *wanted} - {*but}):
        if other := {*found.get(key, ())} ^ {*wanted.get(key, ())}:
            yield key, sorted(other)


def _not_whole(after: Holdings) -> frozenset[str]:
    """Return keys of rows and versions left by a crashed run or a manual change that are yet to be read again."""
    ledger = after.by_key("sync_imports", "slug")
    rows = [(r["_import_slug"], r["_record_slug"], r["_dlt_load_id"]) for _, r in _each(after.typed)]
    loaded = {
        slug
        for slug, row in ledger.items()
        if row.get("state") in ("synced", "unreconciled") and row.get("due") != "torn"
    }
    half = {of for of, _, load_id in rows if of not in loaded or load_id != ledger[of]["_dlt_load_id"]}
    there = Counter(row["_import_slug"] for _, row in _each(after.typed) if row["_deleted_at"] is None)
    half |= {of for of in loaded if ledger[of]["table_name"] and there[of] < (ledger[of]["records_loaded"] or 0)}
    slugs = ((r, r.get("slug")) for _, r in _each(after.versions))  # of a version of an import
    versions = [(r.get("_import_slug", slug), r.get("_record_slug", slug)) for r, slug in slugs]
    keys = {key for of, key in [*((of, key) for of, key, _ in rows), *versions] if of in half or of not in loaded}
    unwritten = {row["slug"] for row in after.of_table("imports") if row.get("_content_hash") is None}
    return frozenset(key for key in keys if key) | unwritten


def _of_torn(after: Holdings) -> frozenset[str]:
    """Return keys of rows of an import that lost others, such as to another import that they came with, too."""
    torn = {row["slug"] for row in after.of_table("sync_imports") if row.get("due") == "torn"}
    return frozenset(row["_record_slug"] for _, row in _each(after.typed) if row["_import_slug"] in torn)


def _unread_imports(ran: Ran) -> tuple[frozenset[str], frozenset[str]]:
    """Return imports whose row in `imports` is under other rules than those of the run, or lost and yet to be listed.

    Behind them, those of which what came with their records is lost: the rest of their row is as it was listed.
    """
    # a row without a mark is under the rules of its version
    imports, now = ran.after.by_key("imports", "slug"), (None, ran.settings.protection.fingerprint_of_metadata)
    others = {s for s, row in imports.items() if row["_deleted_at"] is None and row.get("_ruled_by") not in now}
    due = {row["slug"]: row.get("due") for row in ran.after.of_table("sync_imports")}
    lost = {slug for slug, why in due.items() if why == "lost"}
    vanished = {slug for slug, why in due.items() if why == "vanished"}  # one whose row was lost gets none any more
    partly = {slug for slug in lost & imports.keys() if imports[slug].get("records_metadata") is None}
    return frozenset(others | ((lost | vanished) - imports.keys())), frozenset(partly)


def _under_other_rules(ran: Ran) -> frozenset[str]:
    """Return keys of rows that are under other rules than those of the run, which did not read them."""
    names: dict[str | None, set[str | None]] = {}
    for row in ran.after.of_table("imports"):
        names.setdefault(row["template__slug"], set()).add(row["template__name"])
    protection, ledger = ran.settings.protection, ran.after.by_key("sync_imports", "slug")
    found = set()
    for _, row in _each(ran.after.typed):
        of = ledger.get(row["_import_slug"], {}).get("template_slug")
        now = {protection.fingerprint_of_records(of, name) for name in names.get(of, {None})}
        if row.get("_ruled_by") not in now:
            found.add(row["_record_slug"])
    return frozenset(found)


def _unread_records(ran: Ran) -> dict[str, frozenset[str]]:
    """Return table → records whose import, by their current version, was not read, and whose row is away or torn."""
    before = ran.before.by_key("sync_imports", "slug")
    unread = {
        row["slug"]: row.get("due")
        for row in ran.after.of_table("sync_imports")
        if row.get("state") != "deleted" and (row.get("state") == "failed" or row.get("due") == "torn")
        if row["last_synced_at"] == before.get(row["slug"], {}).get("last_synced_at")
    }
    torn, live = {slug for slug, due in unread.items() if due == "torn"}, ran.after.live_typed()
    found = {}
    for name, versions in ran.before.versions.items():
        still = (row for row in versions if row["_valid_to"] is None and row.get("_import_slug") in unread)
        keys = (row["_record_slug"] for row in still)
        away = (key for key in keys if all(row["_import_slug"] in torn for _, row in live.get(key, ())))
        found[name.removesuffix("_history")] = frozenset(away)
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What a completed run saw; `moment` is None if it recorded no versions.

    It was run `number`; `ruled` tells whether all rows are under its privacy rules. `live` are the rows of tables whose
    versions it recorded. `left` are keys whose versions it did not erase, nor a crashed run before it; None for all.
    `not_whole` are keys of rows left by a crashed run or a manual change that it did not read again, and of versions
    that wait for their rows.
    """

    moment: datetime | None
    number: int
    ruled: bool
    live: Snapshot
    left: frozenset[str] | None
    not_whole: frozenset[str]


def check_history(
    ran: Ran,
    completed: list[Seen],
    all_rules: Sequence[Rules],
    all_deletes: Sequence[str],
    *,
    kept: frozenset[str],
    changed_manually: bool,
    touched: frozenset[str],
    calm: bool,
) -> None:
    """Check after a completed run the current versions, that none overlap, and what earlier recording runs saw.

    `all_rules` are the rules of each run until now, `all_deletes` its `deletes`. Earlier versions have no values that
    changed rules cover. `kept` are the slugs of rows marked by a run with `deletes = keep` that are still there,
    `touched` those of records and imports that changed during the run. If the run was not `calm`, an import changed
    during it or a request failed, so what it found missing may have moved.
    """
    assert ran.tally is not None
    rules, number = all_rules[-1], len(all_rules)
    after = ran.after
    keeps = ran.settings.deletes == "keep"
    whole = ran.whole and ran.tally.interrupted_by is None
    recorded = bool(ran.settings.history)
    repaired = whole and (not changed_manually or ran.tally.status is Status.succeeded)
    not_whole = _of_torn(after) if repaired else _not_whole(after)
    # a missing record may be rejected, or have moved to an import that could not be read or was not listed
    erases = whole and ran.tally.status is Status.succeeded and not ran.tally.imports_unreconciled
    if recorded:
        not_whole |= _check_current(ran, all_rules, not_whole, all_noted=keeps or (erases and calm))
    if not ran.settings.typed:
        none_of(_spans(after) - _spans(ran.before), "no version of a typed row begins or ends while there are none")
    now = snapshot(after)
    there = _keys(after)
    if erases and not keeps:
        changes = [
            (row["slug" if name.startswith("imports") else "_record_slug"], row["_change"])
            for name, row in _each(after.versions)
        ]
        # until `compact`, if a run with `keep` recorded a deletion that one with `mirror` had loaded before it died
        told = {key for key, change in changes if change == "delete"} if "keep" in all_deletes else set()
        # an import that was deleted may have been restored during the run
        waiting = frozenset[str]() if calm else _keys(ran.before) | _keys_of_open_versions(ran.before) | touched
        none_of({key for key, _ in changes} - there - kept - told - waiting, "what was erased leaves no version")
    alive = there  # ever since: what was missing in a run that read everything has been erased
    emptied: dict[str, set[str]] = {}
    for earlier in [] if changed_manually else reversed(completed):
        if earlier.left is not None:
            alive &= earlier.left
        moment = earlier.moment
        if not earlier.ruled or any(each != rules for each in all_rules[earlier.number - 1 :]):
            emptied = _ruled_columns(after, all_rules)
        for table, all_was in [] if moment is None else earlier.live.items():
            gone = emptied.get(table, set())
            was = {key: _without(content, gone) for key, content in all_was.items()}
            versions = after.versions.get(f"{table}_history", [])
            key = "slug" if table == "imports" else "_record_slug"
            shown = {
                row[key]: _without(_content(row), gone)
                for row in versions
                if row["_valid_from"] <= moment and (row["_valid_to"] is None or moment < row["_valid_to"])
            }
            has_kept = all(each == "keep" for each in all_deletes[earlier.number :])
            wanted = was if has_kept else {k: v for k, v in was.items() if k in alive or k in shown}
            none_of(_differences(shown, wanted, earlier.not_whole), f"as of {moment} {table} is what that run saw")
    settled = ran.whole and ran.tally.status is Status.succeeded
    if settled and not keeps:
        _check_protected(after, rules, kept)
    of = recorded_tables(ran)
    live = {table: rows for table, rows in now.items() if of is None or table in of}
    left = there | (touched & _keys(ran.before)) if _may_erase(ran) else None
    if number - (completed[-1].number if completed else 0) > 1:  # a run between them crashed
        left = _keys(ran.before) if left is None else left & _keys(ran.before)
    completed.append(Seen(ran.tally.started_at if recorded else None, number, settled, live, left, not_whole))


def _may_erase(ran: Ran) -> bool:
    """Return whether a run read all that it is about, so that a record that it did not find has not moved."""
    assert ran.tally is not None
    if ran.tally.interrupted_by is not None:
        return False
    shared = ("rows were loaded into", "came with another import")  # all was read, and a record is stored once
    problems = [each for each in ran.tally.problems if not any(words in each for words in shared)]
    return not any("Import " in each or "list" in each for each in problems)


def _keys(holdings: Holdings) -> frozenset[str]:
    """Return the keys of all rows that are live."""
    return frozenset(holdings.live_records()).union(*snapshot(holdings).values())


def _keys_of_open_versions(holdings: Holdings) -> frozenset[str]:
    """Return the keys of versions that have not ended, also of rows that went while no versions were recorded."""
    still = (row for _, row in _each(holdings.versions) if row["_valid_to"] is None)
    return frozenset(row["_record_slug" if "_record_slug" in row else "slug"] for row in still)


def _spans(holdings: Holdings) -> set[tuple[Any, ...]]:
    """Return (table, key, beginning, end) of each version of a typed row."""
    each = _each(holdings.versions)
    return {(t, v["_record_slug"], v["_valid_from"], v["_valid_to"]) for t, v in each if t != "imports_history"}


def _check_protected(after: Holdings, rules: Rules, kept: frozenset[str]) -> None:
    """Check that no version has a value that the rules forbid, except for imports that vanished before they were read.

    A path for which a template has a rule of its own is left out. Vanished imports keep rows loaded under earlier rules
    until the next run finds them deleted.
    """
    own = {path for section in named_sections(rules) for path in rules[section]}
    vanished = {row["slug"] for row in after.of_table("sync_imports") if row.get("due") == "vanished"}
    for name, all_rows in after.versions.items():
        rows = [row for row in all_rows if row.get("_import_slug", row.get("slug")) not in vanished]
        rows = [row for row in rows if row.get("_record_slug", row.get("slug")) not in kept]
        table = name.removesuffix("_history")
        for keys, known in _fields_by_table(after).get(table, {}).items():
            section, path = ("metadata", ".".join(keys[1:])) if table == "imports" else ("*", ".".join(keys))
            ruled = keys[:1] != ("extra",) and (table == "imports" or path not in own)
            rule = rules.get(section, {}).get(path) if ruled else None
            columns = [known["column_name"] + suffix for suffix in ("", "__v_text", "__v_double")]
            left = [row for row in rows for c in columns if rule and not is_protected(row.get(c), rule)]
            none_of(left, f"no version of {table} has what {path} = {rule} does not leave")


def _ruled_columns(after: Holdings, rules: Iterable[Rules]) -> dict[str, set[str]]:
    """Return table → columns to which a rule may apply."""
    every = (each[section] for each in rules for section in named_sections(each) | each.keys() & {"*"})
    firsts = {path.partition(".")[0] for section in every for path in section}
    found = {table: {"_more"} for table in after.typed}
    found["imports"] = {"metadata", "records_metadata", "extra"}
    for table, fields in _fields_by_table(after).items():
        for keys, known in fields.items():
            if keys and (table == "imports" or keys[0] in firsts):
                found.setdefault(table, set()).update(
                    known["column_name"] + suffix for suffix in ("", "__v_text", "__v_double")
                )
    return found


def _without(content: Content, columns: Iterable[str]) -> Content:
    return tuple((name, value) for name, value in content if name not in columns)


def _each(tables: Mapping[str, Rows]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, rows in tables.items():
        for row in rows:
            yield name, row


def snapshot(after: Holdings) -> Snapshot:
    """Return table → key → contents of a version, for all live rows."""
    found = {
        table: {row["_record_slug"]: _content(row) for row in rows if row["_deleted_at"] is None}
        for table, rows in after.typed.items()
    }
    return {
        **found,
        "imports": {row["slug"]: _content(row) for row in after.of_table("imports") if row["_deleted_at"] is None},
    }


def _content(row: Mapping[str, Any]) -> Content:
    """Return a row without columns that change without a new version; a column that was added later counts as null."""
    return tuple(sorted((name, repr(value)) for name, value in row.items() if name not in TOLD and value is not None))


def check_mirrored(after: Holdings, kept_until: datetime | None) -> None:
    """Check with `deletes = mirror` that rows marked by a run before, which ended at `kept_until`, stay where they may.

    Until `compact` they may stay if their import is deleted, in the table of a template that it had before, and
    otherwise until it is read.
    """
    ledger = after.by_key("sync_imports", "slug")
    marked = [
        (row["import_slug"], row["slug"], "records")
        for row in after.of_table("records")
        if row["_deleted_at"] is not None
    ]
    marked += [
        (r["_import_slug"], r["_record_slug"], table) for table, r in _each(after.typed) if r["_deleted_at"] is not None
    ]
    none_of(marked if kept_until is None else (), "nothing deleted is kept")
    for slug, record, table in marked:
        assert kept_until is not None
        known = ledger.get(slug, {})
        former = table not in ("records", known.get("table_name"))
        kept = former or known.get("state") == "deleted" or (known.get("last_synced_at") or kept_until) <= kept_until
        require(kept, "nothing deleted is kept of what was read since", record, known)
