"""Decide on the listing: what a run reads, deletes and notes in the ledger, and what keeps it from being complete.

Nothing here makes a request or a query; what there is to report goes into the tally. `connector.run.discover` makes the
requests before.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from connector.extract.listing import Listing
from connector.ledger import INCOMPLETE_ROWS, Due, State
from connector.load.imports_table import is_listed_as
from connector.models import Import, Reject, Template
from connector.run.choice import Choice, slugs_of
from connector.run.crash_suspects import KilledTwice
from connector.run.delete_limit import DeleteLimit, check_delete_limit
from connector.run.plan import Plan, Rules, make_plan
from connector.run.settling import SECOND, resolution
from connector.runs import Noted, Tally
from connector.settings import Settings
from connector.transform.privacy import unread
from connector.warehouse.state import WarehouseState

log = logging.getLogger("connector.run")


@dataclass(frozen=True, slots=True)
class Found:
    """What a listing and the requests after it showed.

    `imports` are all that exist, each template with one name. `unlisted` exist though they are not listed; for `gone`
    the service answers 404; `hidden` have the status that the settings select and are not listed. `template_unknown`
    says that an import is not among them because its template is unknown. `unseen` is how many of the known imports
    were neither listed nor found by a request, because they are gone, or nobody knows. `left_status` exist at another
    status than the one that is read, at which they are known.
    """

    imports: Sequence[Import]
    listing: Listing[Any]
    unlisted: Sequence[Import] = ()
    gone: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    template_unknown: bool = False
    unseen: int = 0
    left_status: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Discovered:
    """The listing and the decisions on it; `unit` is the resolution of the service's times.

    `imports` are all imports of the run. `excluded` are those among them that the settings leave out: their records are
    not read, and the ledger is yet to be updated; one that is shown without a template has the one it had.
    `complete` is false if an import exists, or may exist, that the settings include and the run cannot read.
    `off_status` are imports that were open, and no longer have the status that is read. `left_status` are imports
    that are known at that status, exist at another one, and are not due yet: they may come back with the same
    fingerprint, and are to be read again then. `noted` is what later runs have to know, whatever becomes of this
    one, and `noted_after` what they have to once `deleted` are, if that differs. `whole_listing` says that it has
    everything that exists, at any status.
    """

    imports: tuple[Import, ...]
    rejects: tuple[Reject, ...]
    plan: Plan[Import]
    deleted: tuple[str, ...]
    unit: timedelta = SECOND
    excluded: tuple[Import, ...] = ()
    complete: bool = True
    off_status: tuple[str, ...] = ()
    left_status: tuple[str, ...] = ()
    noted: Noted = field(default_factory=Noted)
    noted_after: Noted | None = None
    whole_listing: bool = False


class Decision:
    """The decisions of one run, by its settings, its scope and what the warehouse had at its beginning."""

    def __init__(
        self, settings: Settings, choice: Choice, state: WarehouseState, tally: Tally, *, now: datetime
    ) -> None:
        self._settings = settings
        self._scope = scope = choice.scope
        self._choice = choice
        self._state = state
        self._tally = tally
        self._rules = Rules(
            now,
            scope.force,
            scope.recheck_days,
            settings.raw,
            settings.typed,
            counted=settings.reconcile != "off",
            named=bool(scope.selection.slugs),
            privacy=lambda i: settings.protection.fingerprint(i.template_slug, i.template_name),
            mixed=self._has_mixed_metadata,
        )

    def _has_mixed_metadata(self, slug: str) -> bool:
        seen, rules = self._state.imports.get(slug), self._settings.protection.fingerprint_of_metadata
        return rules is not None and seen is not None and seen.rules != rules

    def make(self, found: Found) -> Discovered:
        """Return what the run is to do, and report what keeps it from being complete."""
        imports, listing, gone = found.imports, found.listing, found.gone
        rejects = tuple(row for row in listing.rows if isinstance(row, Reject))
        wanted = [i for i in imports if self._choice.wants(i)]
        left_out_by_name = self._choice.left_out_by_name(imports, self._state)
        renamed = self._choice.left_out_by_former_name(imports, left_out_by_name)
        untold = self._left_out_without_template(wanted, left_out_by_name)
        self._report_selected_without_template(wanted)
        left_out_here = {i.slug for i in wanted if i.template_slug in renamed} | untold.keys()
        included = [i for i in wanted if self._may_be_read(i) and i.slug not in left_out_here]
        self._report_left_out_by_settings(renamed, imports, included)
        plan = make_plan(self._under_rules(included, imports), self._state.ledger, self._rules)
        self._tally.imports_listed = len(imports)
        if not (included or found.template_unknown) and listing.complete and self._scope.mode == "backfill":
            self._choice.refuse_empty(imports, wanted, self._tally.problems)
        if listing.complete and not self._choice.selects:
            self._check_template_names(imports, reported=renamed.values())
        excluded = [i for i in wanted if not self._choice.includes(i) or i.slug in left_out_here]
        left_out = tuple(
            structs.replace(i, template=Template(name=slug, slug=slug)) if (slug := untold.get(i.slug)) else i
            for i in excluded
            if not self._is_noted_as_excluded(i)
        )
        is_shard = self._scope.selection.part is not None
        if not is_shard:
            self._report_older_rules(wanted, excluded, imports)
            self._report_incomplete(wanted, excluded)
        # a shortfall until here means that an import exists, or may exist, whose records are not read as they are to be
        complete = listing.complete and not (found.unlisted or rejects or self._tally.shortfall)
        if not listing.complete or found.unlisted:
            self._tally.shortfall = True
            slugs = [i.slug for i in found.unlisted]
            named = f"{', '.join(slugs[:3])}{', …' * (len(slugs) > 3)}"
            why = listing.reason or f"{len(slugs)} imports exist that the service does not list: {named}"
            self._tally.problems.append(f"The listing of imports is not known to be complete: {why}.")
            gone = ()
        self._report_old_rejects(included, plan)
        self._report_left_out(included, plan)
        # a backfill lists few imports, so the unit follows from the times of all known ones
        known = [each.updated_at for each in self._state.ledger.values() if each.updated_at is not None]
        unit = resolution([*(i.updated_at for i in imports), *known]) if plan.read else SECOND
        if is_shard:  # the run after the shards reads imports that are in no shard's part
            return Discovered(tuple(wanted), (), plan, (), unit, complete=complete, noted=self._state.noted)
        limit = self._delete_limit(found, gone)
        deleted = gone if limit.allows else ()
        complete = complete and deleted == gone
        off_status = self._open_off_status({*(i.slug for i in wanted), *deleted}) if complete else ()
        # until a run has a name to ask for, what the ledger tells of names that are not noted stays to be asked
        unasked = self._state.noted.left_out_by_name is None and self._settings.exclude_templates is None
        unasked = unasked and any(known.state is State.excluded for known in self._state.ledger.values())
        names = None if unasked else left_out_by_name
        noted, noted_after = Noted(limit.base, names), Noted(limit.base_after, names)
        ledger = self._state.ledger
        left_status = tuple(s for s in found.left_status if s in ledger and ledger[s].due is None)
        whole = listing.complete and not (found.unlisted or self._choice.is_bounded)
        return Discovered(
            imports=tuple(wanted),
            rejects=rejects,
            plan=plan,
            deleted=deleted,
            unit=unit,
            excluded=left_out,
            complete=complete,
            off_status=off_status,
            left_status=left_status,
            noted=noted,
            noted_after=noted_after,
            whole_listing=whole,
        )

    def _left_out_without_template(
        self, wanted: Sequence[Import], left_out_by_name: Mapping[str, Set[str]]
    ) -> Mapping[str, str]:
        """Return and report imports shown without a template, with the one they had, if exclude_templates names that.

        Invariant: a missing template does not make a run load what was left out by it.
        """
        names = set(self._settings.exclude_templates or ())
        left_out = names.union(*(left_out_by_name.get(name, ()) for name in names))
        found: dict[str, str] = {}
        for import_ in wanted:
            slug = self._known_template(import_)
            if import_.template is None and slug is not None and slug in left_out:
                found[import_.slug] = slug
        for import_slug, slug in sorted(found.items()):
            self._tally.shortfall = True
            self._tally.problems.append(
                f"Import {import_slug} is shown without a template. It had template {slug}, which exclude_templates "
                "leaves out, so it stays left out."
            )
        return found

    def _report_selected_without_template(self, wanted: Sequence[Import]) -> None:
        """Report imports shown without a template, and so not read, if `templates` selects the one they had."""
        chosen = set(self._settings.templates or ())
        if not chosen:
            return
        named = chosen.union(*(slugs_of(name, self._state) for name in chosen))
        for import_ in sorted(wanted, key=lambda i: i.slug):
            slug = self._known_template(import_)
            if import_.template is None and slug in named:
                self._tally.shortfall = True
                self._tally.problems.append(
                    f"Import {import_.slug} is shown without a template. It had template {slug}, which templates "
                    "selects; it is not read, and its rows stay."
                )

    def _known_template(self, import_: Import) -> str | None:
        """Return the slug of the template that the import had when it was read or listed last."""
        known, seen = self._state.ledger.get(import_.slug), self._state.imports.get(import_.slug)
        told = None if known is None else known.template_slug
        return told or (None if seen is None else seen.template_slug)

    def _report_left_out_by_settings(
        self,
        renamed: Mapping[str, str],
        imports: Sequence[Import],
        included: Sequence[Import],
    ) -> None:
        """Report templates left out only by a former name, and imports requested by slug that are left out."""
        names = {i.template_slug: i.template_name for i in imports}
        otherwise = {i.template_slug for i in imports if not self._settings.includes(i.template_names)}
        for slug, name in sorted((slug, name) for slug, name in renamed.items() if slug not in otherwise):
            self._tally.shortfall = True
            self._tally.problems.append(
                f"exclude_templates names {name!r}, but template {slug}, which was left out, is called "
                f"{names[slug]!r} now: it stays left out. Use its slug, or remove {name!r} if it is to be read. If "
                f"another template is called {name!r} now and is to be left out, name its slug."
            )
        if included:  # otherwise nothing can be read, which is an error
            asked = self._scope.selection.slugs & ({i.slug for i in imports} - {i.slug for i in included})
            for slug in sorted(asked):
                self._tally.shortfall = True
                self._tally.problems.append(
                    f"Import {slug} is not read: templates, exclude_templates or status leaves it out."
                )

    def _report_incomplete(self, wanted: Sequence[Import], excluded: Sequence[Import]) -> None:
        """Report imports known to be loaded in part that are not read, because a setting leaves them out."""
        ledger = self._state.ledger
        left_out = ledger.keys() & {i.slug for i in excluded}
        if self._settings.status is not None and not self._choice.selects:
            left_out |= ledger.keys() - {i.slug for i in wanted}
        for slug in sorted(left_out):
            if ledger[slug].is_incomplete:
                self._tally.shortfall = True
                self._tally.problems.append(f"Import {slug}: {INCOMPLETE_ROWS}")

    def _under_rules(self, included: Sequence[Import], imports: Sequence[Import]) -> list[Import]:
        """Return imports whose privacy rules are the intended ones, as far as names show; report the others.

        The others are those whose template was renamed, or is probably meant by a section that matches no template.
        """
        names = {i.template_slug: i.template_name for i in imports if i.template_slug is not None}
        read = {i.template_slug for i in included if i.template_slug is not None}
        suspect = self._choice.suspect_rules(names, read, self._state)
        for slug, name in sorted(suspect.renamed.items()):
            self._tally.shortfall = True
            self._tally.problems.append(
                f"privacy has rules for {name!r}, but the template that had this name has been renamed: its imports "
                f"are not read, nor those of a template that has this name now. Use its slug as the name of the rules: "
                f"{slug}."
            )
        for title, meant in suspect.misspelt.items():
            self._tally.shortfall = True
            self._tally.problems.append(unread(title, meant))
        return [i for i in included if i.template_slug not in suspect.templates]

    def _may_be_read(self, import_: Import) -> bool:
        """Return whether the import may be read: a shard reads only the version at which the work was divided.

        Another version may need a column of `imports`, which all shards share, or have its rows in another shard's
        table.
        """
        if not self._choice.includes(import_):
            return False
        if self._scope.selection.part is None:
            return True
        seen, rules = self._state.imports.get(import_.slug), self._settings.protection.fingerprint_of_metadata
        as_divided = seen is not None and not seen.deleted and is_listed_as(seen.content_hash, import_, rules)
        return as_divided and import_.slug not in self._state.imports_of_other_shards

    def _is_noted_as_excluded(self, import_: Import) -> bool:
        known = self._state.ledger.get(import_.slug)
        if known is None or not known.trusted:
            return False
        if known.state is State.excluded and known.due == Due.status:
            return False
        same_rules = known.last_synced_at is not None or known.rules == self._rules.privacy(import_)
        return (known.state is State.excluded and same_rules) or known.error == INCOMPLETE_ROWS

    def _open_off_status(self, considered: Collection[str]) -> tuple[str, ...]:
        """Return imports of another status than the settings select that the ledger says the next run reads again."""
        if self._settings.status is None or self._choice.selects:
            return ()
        again = (State.failed, State.unreconciled)
        known = self._state.ledger.items()
        return tuple(s for s, k in known if k.state in again and not k.is_incomplete and s not in considered)

    def _check_template_names(self, imports: Sequence[Import], reported: Collection[str]) -> None:
        for misnamed in self._choice.misnamed_templates(imports, self._state):
            if misnamed.name in reported:
                continue
            if misnamed.lacks:
                self._tally.shortfall = True
                self._tally.problems.append(misnamed.sentence)
            else:
                log.warning(misnamed.sentence, extra={"event": "template.unknown", "template": misnamed.name})

    def _report_old_rejects(self, wanted: list[Import], plan: Plan[Import]) -> None:
        reading = {p.import_.slug for p in plan.read}
        known = (self._state.ledger.get(i.slug) for i in wanted if i.slug not in reading)
        kept_out = sum(k.records_rejected for k in known if k is not None)
        if kept_out:
            self._tally.shortfall = True
            self._tally.problems.append(f"{kept_out} records rejected by earlier runs are in sync_rejects only.")

    def _report_left_out(self, wanted: list[Import], plan: Plan[Import]) -> None:
        reading = {p.import_.slug for p in plan.read}
        for import_ in wanted:
            known = self._state.ledger.get(import_.slug)
            if known is not None and known.killed_runs and import_.slug not in reading:
                self._tally.imports_failed += 1
                self._tally.problems.append(f"Import {import_.slug}: {KilledTwice(import_.slug)}")

    def _report_older_rules(
        self, wanted: Sequence[Import], excluded: Sequence[Import], imports: Sequence[Import]
    ) -> None:
        """Report imports that were loaded under other privacy rules and are not read again, because they are left out.

        Invariant: after a run that succeeded, the rows of an import have no value that its rules would change.
        """
        protection, ledger = self._settings.protection, self._state.ledger
        live = {s: k for s, k in ledger.items() if k.live} if protection else {}
        # metadata of an import that was never read is in its row of `imports`, which is written when it is listed
        read = {s for s, k in live.items() if k.records_loaded or (protection.of_metadata and k.last_synced_at)}
        left_out = {i.slug for i in excluded} & read
        never_read: list[str] = []
        if self._settings.status is not None and not self._choice.selects:
            listed = {i.slug for i in wanted}  # the service may ignore the status that is asked for
            left_out |= (live.keys() if protection.of_metadata else read) - listed
            seen, now = self._state.imports if protection.of_metadata else {}, protection.fingerprint_of_metadata
            unlisted = seen.keys() - listed - live.keys()
            never_read = [slug for slug in unlisted if not seen[slug].deleted and seen[slug].rules != now]
        names = {**self._state.current_names, **listed_template_names(imports)}
        older = list(never_read)
        for slug in left_out:  # what was read is under the rules of the template that the import had then
            known, template = live[slug], live[slug].template_slug
            if known.rules != protection.fingerprint_of_loaded(template, names, known.table_name, known.rule_sections):
                older.append(slug)
        if older:
            self._tally.shortfall = True
            self._tally.problems.append(
                f"{len(older)} imports were loaded under other privacy rules and cannot be read again under the "
                f"current ones ({', '.join(sorted(older)[:3])}{', …' * (len(older) > 3)}): templates, "
                "exclude_templates or status leaves them out. Run once without that setting."
            )

    def _delete_limit(self, found: Found, gone: Collection[str]) -> DeleteLimit:
        interrupted = self._state.half_deleted
        fresh = set(gone) - interrupted
        limit = check_delete_limit(
            self._settings.mass_delete_limit,
            known=len(self._state.known - interrupted),
            gone=len(fresh),
            unseen=found.unseen,
            interrupted=len(set(gone) - fresh),
            noted=self._state.noted.delete_limit_base,
            deletes=not self._choice.selects,
            waived=self._scope.allow_mass_delete,
        )
        if limit.problem is not None:
            self._tally.shortfall = True
            self._tally.problems.append(limit.problem)
        return limit


def listed_template_names(imports: Iterable[Import]) -> dict[str, set[str]]:
    """Return the names that the template of any of the imports has, by its slug; '' for imports without one."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in imports:
        if each.template_name is not None:
            found[each.template_slug or ""].add(each.template_name)
    return found
