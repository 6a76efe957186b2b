"""Decide which of the listed imports a run is about, and of which of these it reads the records.

The scope and the setting `status` select the imports of a run. Of these, it reads those that `templates` and
`exclude_templates` do not leave out; the others are listed, and marked as excluded in the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from connector.errors import ConfigError
from connector.ledger import Due, LedgerRow, State
from connector.models import Import, Template
from connector.nearest import nearest, suggest_known
from connector.settings import RunScope, Selection, Settings, Window
from connector.text import composed
from connector.transform.naming import table_name
from connector.warehouse.state import WarehouseState

PROBLEMS_SHOWN = 5
_READ = (State.synced, State.unreconciled)
_RENAMED = "renamed"  # in `sync_imports.due`, before the name that left out the template: by earlier versions


@dataclass(frozen=True, slots=True)
class Misnamed:
    """A template name in the settings that no listed import has; `lacks` if rows may be missing because of it."""

    name: str
    sentence: str
    lacks: bool


@dataclass(frozen=True, slots=True)
class SuspectRules:
    """The templates to which the privacy rules that are meant for them probably do not apply, because of a name.

    `renamed`: slug → the section that named the template before it was renamed; `misspelt`: section → the names or
    slugs of the templates that it is probably meant for; `templates`: the slugs of all of these templates, and of those
    that now have the name of a section in `renamed`. They are not read, and their versions stay as they are.
    """

    renamed: Mapping[str, str]
    misspelt: Mapping[str, Sequence[str]]
    templates: Set[str]


@dataclass(frozen=True)
class Choice:
    """The imports that the settings and the scope of a run select."""

    settings: Settings
    scope: RunScope

    @property
    def selects(self) -> bool:
        """Return whether the scope selects only a part of the imports."""
        return (self.scope.window, self.scope.selection) != (Window(), Selection())

    @cached_property
    def is_bounded(self) -> bool:
        """Return whether the run considers only a part of the imports; excluded ones are considered, but not read."""
        return self.selects or self.settings.status is not None

    def wants(self, import_: Import) -> bool:
        if not self.is_bounded:
            return True
        if self.settings.status is not None and import_.status != self.settings.status:
            return False
        return self.scope.window.contains(import_.updated_at) and self.scope.selection.contains(import_)

    def includes(self, import_: Import) -> bool:
        """Return whether the records of the import are read."""
        return self.wants(import_) and self.settings.includes(import_.template_names)

    def still_reads(self, listed: Import, now: Import) -> bool:
        """Return whether an import that is read may be loaded as it is `now`, by the decisions on the `listed` version.

        It may not if it moved to another template, which may be left out, under other rules, or in another shard's
        part, or if it no longer has the status that the settings select.
        """
        settings, template = self.settings, (now.template_slug, now.template_name)
        as_ruled = settings.protection.fingerprint(*template) == settings.protection.fingerprint(
            listed.template_slug, listed.template_name
        )
        chosen = settings.status in (None, now.status) and settings.includes(now.template_names)
        return now.template_slug == listed.template_slug and as_ruled and chosen

    def suspect_rules(
        self, names: Mapping[str, str | None], read: Collection[str], state: WarehouseState
    ) -> SuspectRules:
        """Find the templates that a wrong name leaves without their privacy rules, or under those of others.

        `names` are those that the templates have now, by slug; only those in `read` can have misspelt rules.

        Invariant: a template is not read if an import of it was ever read under a section of rules, as the ledger says,
        or if it had the name of a section that no template has now, and that section still exists but no longer names
        the template, unless the template has a section of its own: by its slug, or by a name under which no other
        template was read. Nor is a template read that now has the name of such a section.
        """
        protection = self.settings.protection
        ruled = set(protection.templates)
        if not ruled:
            return SuspectRules({}, {}, frozenset())
        named = ruled | protection.bare
        read_under: dict[str, set[str]] = defaultdict(set)
        for known in state.ledger.values():
            # an import that killed runs has the template of its present version, and rows of an earlier one
            if slug := state.template_tables.get(known.table_name or "", known.template_slug):
                told, now = known.rule_sections, {slug, names.get(slug)}
                read_under[slug] |= self._sections_by_fingerprint(known, now) if told is None else told
        former = {name for slug, titles in state.template_names.items() for name in (slug, *titles)}
        present = {*names, *(name for name in names.values() if name is not None)}
        misspelt = protection.misspelt(((slug, names.get(slug)) for slug in read), former | present)
        owned = {
            title for titles in read_under.values() for title in titles
        }  # a section of which it is known whose it is
        formerly = {title: slugs_of(title, state) for title in ruled - present - misspelt.keys() - owned}
        renamed: dict[str, str] = {}
        for slug, name in names.items():
            lost = read_under[slug] & ruled | {title for title, slugs in formerly.items() if slug in slugs}
            lost = {title for title in lost if title not in (slug, name)}
            of_others = any(name in titles for other, titles in read_under.items() if other != slug)
            if lost and slug not in named and (name not in named or of_others):
                renamed[slug] = min(lost)
        left = set(renamed.values())
        taken = {
            slug for slug, name in names.items() if name in left and slug not in named and name not in read_under[slug]
        }
        meant = {name for found in misspelt.values() for name in found}
        unread = {slug for slug, name in names.items() if slug in read and not meant.isdisjoint((slug, name))}
        return SuspectRules(renamed, misspelt, renamed.keys() | taken | unread)

    def left_out_by_name(self, imports: Collection[Import], state: WarehouseState) -> Mapping[str, Set[str]]:
        """Return name under `exclude_templates` → slugs of the templates that it leaves out, whatever they are called.

        A name that is no longer configured keeps a template until this run and an earlier one have read imports of it:
        another setting may have left it out for a while, or a run ended before it read any.
        """
        named, templates = set(self.settings.exclude_templates or ()), _by_slug(imports)
        found = {name: set(slugs) for name, slugs in (state.noted.left_out_by_name or {}).items()}
        for name, slug in self._left_out_by_ledger(templates, state) if named else ():
            found.setdefault(name, set()).add(slug)
        shown = {slug: template.names for slug, template in templates.items()}
        # one that no import shows now: all of its imports may be shown without a template
        for slug, names in {**state.current_names, **shown}.items():
            for name in named & names - {slug}:
                found.setdefault(name, set()).add(slug)
        was_read = {known.template_slug for known in state.ledger.values() if known.live and known.state in _READ}
        read = was_read & {each.template_slug for each in imports if self.includes(each)}
        kept = {name: slugs if name in named else slugs - read for name, slugs in found.items()}
        return {name: frozenset(slugs) for name, slugs in kept.items() if slugs}

    def left_out_by_former_name(
        self, imports: Collection[Import], left_out: Mapping[str, Set[str]]
    ) -> Mapping[str, str]:
        """Return slug of a template → name under `exclude_templates` that leaves it out, and that it no longer has."""
        named = sorted(left_out.keys() & set(self.settings.exclude_templates or ()), reverse=True)
        templates = _by_slug(imports)
        return {
            slug: name
            for name in named
            for slug in left_out[name] & templates.keys()
            if name not in templates[slug].names
        }

    def _left_out_by_ledger(
        self, templates: Mapping[str, Template], state: WarehouseState
    ) -> Iterator[tuple[str, str]]:
        """Yield (name, slug of a template) for those that the ledger says were left out by a name.

        Format 1 marks their imports. If no run has noted names, because they are lost or all runs were of format 1, a
        template with excluded imports may have been left out by any of its names; if none of them is configured and
        nothing else leaves it out, by a configured name of which nothing is known.
        """
        named, noted = set(self.settings.exclude_templates or ()), state.noted.left_out_by_name is not None
        former = {name for slug, names in state.template_names.items() for name in (slug, *names)}
        unknown = named - former - {name for template in templates.values() for name in template.names}
        for import_slug, known in state.ledger.items():
            seen, (why, _, mark) = state.imports.get(import_slug), (known.due or "").partition(":")
            slug = known.template_slug if seen is None else seen.template_slug
            is_excluded = known.state is State.excluded
            # what was never read and is deleted was left out before
            if slug is None or not (is_excluded or (not noted and known.state is State.deleted)):
                continue
            if why == _RENAMED and mark:
                yield composed(mark), slug
            elif not noted and known.due != Due.status and (is_excluded or known.last_synced_at is None):
                names = set(state.template_names.get(slug, ()))
                current = templates[slug].names if slug in templates else {slug, *names}
                lacks = is_excluded and names.isdisjoint(named) and self.settings.includes(current)
                yield from ((name, slug) for name in (names | unknown if lacks else names))

    def _sections_by_fingerprint(self, known: LedgerRow, present: Set[str | None]) -> Set[str]:
        """Return the sections under which an import was read, for a ledger row of an earlier version that names none.

        They are found by the fingerprint of their rules. Of several with the same rules, return those that are
        `present` names of the template, or all if none is.
        """
        protection, rules = self.settings.protection, known.rules
        if rules is None:
            return frozenset()
        fits = {name for name in protection.templates if protection.fingerprint(known.template_slug, name) == rules}
        return {name for name in fits if name in present} or fits

    def refuse_empty(self, imports: Sequence[Import], wanted: Sequence[Import], problems: list[str]) -> None:
        """Raise ConfigError if nothing that may be read has a name given to a backfill.

        A window may select nothing. The `problems` that led to this are only in the error.
        """
        selection = self.scope.selection
        if wanted and selection != Selection():
            template = wanted[0].template_name or wanted[0].template_slug
            of = f"is of the template {template}" if template else "has no template"
            raise ConfigError(
                f"Import {wanted[0].slug} {of}, and templates or exclude_templates under [sources.importer] leaves "
                "such imports out; change that first."
            )
        if selection.slugs and imports:
            slug = min(selection.slugs)
            raise ConfigError(f"Import {slug} is left out by the other conditions; remove some of them.")
        if selection.slugs:
            reason = " ".join(problems[:PROBLEMS_SHOWN])
            problems.clear()
            raise ConfigError(reason)
        names = _templates(imports)
        if selection.template is not None and selection.template not in names:
            raise ConfigError(
                f"No import has the template {selection.template!r}: {suggest_known(selection.template, names)}"
            )

    def misnamed_templates(self, imports: Sequence[Import], state: WarehouseState) -> Iterator[Misnamed]:
        """Yield each name under `templates` and `exclude_templates` that no listed import has.

        A former name of a template is accepted while all of its imports are gone. Raises ConfigError if `templates`
        selects nothing that exists or ever did; within one `status`, the imports selected may have another status.
        """
        if not (self.settings.templates or self.settings.exclude_templates):
            return
        listed, chosen = _templates(imports), self.settings.templates or ()
        former = {name: slugs_of(name, state) for name in {*chosen, *(self.settings.exclude_templates or ())}}
        nothing = bool(imports and chosen) and not any(name in listed or former[name] for name in chosen)
        if nothing and self.settings.status is None:
            raise ConfigError(f"No import has the template {chosen[0]!r}: {suggest_known(chosen[0], listed)}")
        now = {i.template_slug: i.template_name for i in imports if i.template_slug}
        for key in ("templates", "exclude_templates"):
            for name in sorted(set(getattr(self.settings, key) or ()) - listed):
                renamed = min(former[name] & now.keys(), default=None)
                found = suggest_known(name, listed)
                if renamed is not None:
                    found = f"it is called {now[renamed]!r} now; use its slug, {renamed}."
                lacks = renamed is not None or (key == "templates" and bool(imports) and not former[name])
                yield Misnamed(name, f"{key} names {name!r}, and no import has that template: {found}", lacks)


def slugs_of(name: str, state: WarehouseState) -> Set[str]:
    """Return the slugs of the templates that have or had this name, or whose table was named after it."""
    known = state.template_names.items()
    named = {slug for slug, names in known if slug and name in (slug, *names)}
    tables = state.template_tables.items()
    return named | {slug for table, slug in tables if slug and table_name(name, slug, {}) == table}


def missing_import_message(slug: str, ledger: Mapping[str, LedgerRow]) -> str:
    """Return the sentence about an import that was requested by slug and that the service answers 404 for."""
    if slug in ledger:
        return f"The service has no import {slug} any more."
    meant = " or ".join(nearest(slug, ledger))
    return f"The service has no import {slug}: {f'did you mean {meant}?' if meant else 'v_imports lists those loaded.'}"


def _by_slug(imports: Iterable[Import]) -> Mapping[str, Template]:
    return {each.template.slug: each.template for each in imports if each.template is not None}


def _templates(imports: Sequence[Import]) -> set[str]:
    return {name for i in imports for name in i.template_names}
