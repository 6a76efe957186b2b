"""Hold all privacy rules and find those of a template, or of metadata (docs/privacy.md).

`privacy_rules` parses the rules under one name; `protection` applies the relevant rules to JSON text.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from connector.nearest import nearest
from connector.text import composed
from connector.transform.naming import table_name
from connector.transform.privacy_rules import Section, strictest
from connector.transform.protection import Protection

ANY_TEMPLATE, METADATA = "*", "metadata"
WITHHELD = "[withheld]"
FINGERPRINT = 32  # characters
MISSPELT = 0.75  # similarity of two names of which one may be a misspelling of the other: e.g. one letter of four
MISSPELT_SLUG = 0.96  # of two slugs: one character of a long random one


@dataclass(frozen=True)
class Privacy:
    """All rules: by the name or slug of a template or `*`, and those for metadata; `bare` are sections without any."""

    sections: Mapping[str, Section] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)
    bare: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, given: Mapping[str, Any], key: str | None) -> Privacy:
        """Parse all rules.

        Raises ValueError that names the rule which cannot be parsed, or says that the key is missing.
        """
        sections: dict[str, Section] = {}
        for name, rules in given.items():
            if not isinstance(rules, Mapping):
                raise ValueError(f'privacy.{name} is not valid: rules belong under a template, as [privacy."{name}"]')
            try:
                section = Section.parse(rules)
            except ValueError as error:
                raise ValueError(f"privacy.{name} is not valid: {error}") from None
            title = composed(str(name))
            if meant := _reserved(title):
                raise ValueError(
                    f"privacy.{name} is not valid: did you mean {meant}? For a template of this name, use its slug"
                )
            if title in sections:
                raise ValueError(f"privacy.{name} is there twice, in two Unicode forms of the name: keep one of them")
            sections[title] = section.beneath(METADATA) if name == METADATA else section
        if not key and any(section.hashes for section in sections.values()):
            raise ValueError("hash needs privacy_key, which belongs in .dlt/secrets.toml under [sources.importer]")
        ruled = {name: each for name, each in sections.items() if each}
        return cls(ruled, (key or "").encode(), frozenset(sections.keys() - ruled))

    def __bool__(self) -> bool:
        return bool(self.sections)

    @property
    def templates(self) -> tuple[str, ...]:
        """Return the names and slugs of templates that have rules."""
        return tuple(sorted(self.sections.keys() - {ANY_TEMPLATE, METADATA}))

    def misspelt(
        self, templates: Iterable[tuple[str | None, str | None]], others: Collection[str] = ()
    ) -> Mapping[str, Sequence[str]]:
        """Return the sections that match no template, each with the templates that it was probably meant for.

        `templates` are the slugs and names of the templates to be read, `others` further valid names. A template that
        has its own section, with rules or without, is not the target of another one. Slugs may be alike, so only one
        that is nearly the same counts.
        """
        there = set(templates)
        known = {composed(name) for each in there for name in each if name}.union(others)
        titles = self.sections.keys() | self.bare
        free = [each for each in there if not titles & {*each}]
        names, slugs = ({each[n] or "" for each in free} - {""} for n in (1, 0))
        wrong = {title: title.strip() for title in self.templates if title not in known}
        found = {
            title: nearest(text, names, alike=MISSPELT) or nearest(text, slugs, alike=MISSPELT_SLUG)
            for title, text in wrong.items()
        }
        return {title: meant for title, meant in found.items() if meant}

    def _sections(self, slug: str | None, name: str | None) -> list[Section]:
        """Return the sections that apply to a template.

        An import without a template may be of any, so for it all sections are merged into one.
        """
        if slug is None and name is None:
            every = [each for title, each in sorted(self.sections.items()) if title != METADATA]
            return [strictest(every)] if every else []
        wanted = dict.fromkeys(composed(each) for each in (slug, name) if each not in (None, ANY_TEMPLATE, METADATA))
        return [self.sections[each] for each in (*wanted, ANY_TEMPLATE) if each in self.sections]

    def sections_of(self, slug: str | None, name: str | None) -> frozenset[str]:
        """Return the names of the sections for this very template, without those that have no rules."""
        return frozenset(self.sections.keys() & {composed(slug or ""), composed(name or "")} - {ANY_TEMPLATE, METADATA})

    def of_template(self, slug: str | None, name: str | None) -> Protection | None:
        """Return the protection of the records of a template; None if no rule applies to them."""
        known = self._protections.get((slug, name))
        if known is None:
            sections = self._sections(slug, name)
            unknown = slug is None and name is None
            protection = Protection(sections, self.key, strictest_first=unknown) if sections else None
            known = self._protections[slug, name] = protection
        return known

    @cached_property
    def _protections(self) -> dict[tuple[str | None, str | None], Protection | None]:
        return {}

    @cached_property
    def of_metadata(self) -> Protection | None:
        """Return the protection of the metadata of imports and of replies with records; None without rules for it."""
        return Protection([self.sections[METADATA]], self.key) if METADATA in self.sections else None

    def fingerprint(self, slug: str | None, name: str | None) -> str | None:
        """Return a fingerprint that changes only with the rules for imports of a template; None if there are none."""
        if (slug, name) not in self._fingerprints:
            self._fingerprints[slug, name] = self._fingerprint(slug, name)
        return self._fingerprints[slug, name]

    @cached_property
    def _fingerprints(self) -> dict[tuple[str | None, str | None], str | None]:
        return {}

    def _fingerprint(self, slug: str | None, name: str | None) -> str | None:
        return self._of_sections(self._sections(slug, name), self.sections.get(METADATA), (slug, name))

    def fingerprint_of_loaded(
        self,
        slug: str | None,
        names: Mapping[str, Collection[str]],
        table: str | None,
        sections: Collection[str] | None,
    ) -> str | None:
        """Return that of the rules for imports that are loaded; `names` are those that each template is shown with.

        Of several names it is one with rules, as when they are read (`ServiceClient.with_one_name`). If none is shown
        any more, it is one of the `sections` that they were loaded under, the one that their typed table has its name
        from, or one that no template is shown with, whichever there are rules for.
        """
        known = names.get(slug or "") or self._titles_of(slug, names, table, sections or ())
        return self.fingerprint(slug, max(known, key=lambda name: (name in self.templates, name), default=None))

    def _titles_of(
        self, slug: str | None, names: Mapping[str, Collection[str]], table: str | None, sections: Collection[str]
    ) -> list[str]:
        if slug is None:
            return []
        shown = set(names).union(*names.values())
        loaded_under = [title for title in self.templates if title in sections]
        of_table = [title for title in self.templates if table in _tables_of(title, slug)]
        return loaded_under or of_table or [title for title in self.templates if title not in shown]

    def fingerprint_of_records(self, slug: str | None, name: str | None) -> str | None:
        """Return one that changes only with the rules for the records of a template."""
        if (slug, name) not in self._of_records:
            self._of_records[slug, name] = self._of_sections(self._sections(slug, name), None, (slug, name))
        return self._of_records[slug, name]

    @cached_property
    def _of_records(self) -> dict[tuple[str | None, str | None], str | None]:
        return {}

    @cached_property
    def fingerprint_of_metadata(self) -> str | None:
        """Return one that changes only with the rules for metadata."""
        return self._of_sections([], self.sections.get(METADATA), (None, None))

    def _of_sections(
        self, sections: Sequence[Section], metadata: Section | None, template: tuple[str | None, str | None]
    ) -> str | None:
        if not sections and metadata is None:
            return None
        hashed = any(each.hashes for each in (*sections, metadata or Section()))
        key = hmac.digest(self.key, b"fingerprint of privacy_key", "sha256").hex() if hashed else None
        rules: list[Any] = [[each.as_json() for each in sections], metadata and metadata.as_json(), key]
        if sections and template == (None, None):
            rules.append("strictest")  # equal sections may mean something else (`strictest_first`)
        if any(each.names_elements for each in (*sections, metadata or Section())):
            rules.append("elements")  # an earlier version took such a pattern for one about all elements, or about none
        if any(each.has_forms for each in (*sections, metadata or Section())):
            rules.append("composed")  # an earlier version applied them to fields in their own Unicode form alone
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:FINGERPRINT]


def _reserved(title: str) -> str | None:
    """Return the reserved title that this one is probably meant for: a letter, its case or blanks differ."""
    if title in (ANY_TEMPLATE, METADATA):
        return None
    text = title.strip().casefold()
    return (
        ANY_TEMPLATE
        if text and not text.strip(ANY_TEMPLATE)
        else next(iter(nearest(text, {METADATA}, alike=0.9)), None)
    )


def _tables_of(title: str, slug: str | None) -> tuple[str, str]:
    """Return the names that the typed table of a template may have; the second if another template has the first."""
    first = table_name(title, slug, {})
    return first, table_name(title, slug, {first: f"{slug} "})


def unread(title: str, names: Sequence[str]) -> str:
    """Return the sentence about a section that is probably misspelt, and the templates that are therefore not read."""
    return (
        f"privacy has rules for {title!r}, which no template is called: did you mean {' or '.join(names)}? Nothing of "
        f"a template that the rules may be meant for is read. Correct the name, or add an empty section, "
        f'[sources.importer.privacy."{names[0]}"], if that template needs no rules.'
    )


def withheld(payload: str, key: bytes) -> str:
    """Return the replacement for the payload of a reject: equal for equal payloads, so that each still counts once."""
    return f"{WITHHELD} {hmac.digest(key, payload.encode('utf-8', 'surrogatepass'), 'sha256').hex()[:16]}"
