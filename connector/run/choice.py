"""Decide which of the listed imports a run is about, and of which of these it reads the records.

A run wants what its scope and the setting `status` select. Of that it includes what `templates` and
`exclude_templates` do not leave out; the rest is listed, and excluded in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from connector.errors import ConfigError
from connector.ledger import LedgerRow, State
from connector.models import Import
from connector.nearest import instead_of
from connector.settings import Scope, Selection, Settings, Window


@dataclass(frozen=True, slots=True)
class Choice:
    """What the settings and the scope of a run choose."""

    settings: Settings
    scope: Scope

    @property
    def selects(self) -> bool:
        """Whether the scope selects a part of the imports."""
        return (self.scope.window, self.scope.selection) != (Window(), Selection())

    @property
    def is_bounded(self) -> bool:
        """Whether the run looks at a part of the imports only; excluded ones are looked at, and not read."""
        return self.selects or self.settings.status is not None

    def wants(self, import_: Import) -> bool:
        if self.settings.status is not None and import_.status != self.settings.status:
            return False
        selection = self.scope.selection
        return self.scope.window.contains(import_.updated_at) and selection.contains(
            import_.template_slug, import_.template_name
        )

    def includes(self, import_: Import) -> bool:
        """Return whether the records of the import are read."""
        return self.wants(import_) and self.settings.includes(import_.template_slug, import_.template_name)

    def without_their_rules(self, imports: Sequence[Import], ledger: Mapping[str, LedgerRow]) -> Mapping[str, str]:
        """Return template → the name under which it has privacy rules, where it is not called so any more.

        By the ledger, imports of it were read under them; a section that a template has by now is not meant.
        """
        protection = self.settings.protection
        lone = set(protection.templates) - _templates(imports)
        found: dict[str, str] = {}
        for import_ in imports if lone else ():
            known, slug = ledger.get(import_.slug), import_.template_slug
            now = protection.fingerprint(slug, import_.template_name)
            if slug is None or known is None or known.privacy in (None, now):
                continue
            if before := [name for name in lone if protection.fingerprint(slug, name) == known.privacy]:
                found[slug] = before[0]
        return found

    def refuse_empty(
        self, imports: Sequence[Import], wanted: Sequence[Import], ledger: Mapping[str, LedgerRow]
    ) -> None:
        """Raise ConfigError where nothing that may be read has the name that a backfill was told.

        In a window there may be nothing.
        """
        selection = self.scope.selection
        if wanted and selection != Selection():
            template = wanted[0].template_name or wanted[0].template_slug
            of = f"is of the template {template}" if template else "has no template"
            raise ConfigError(
                f"Import {wanted[0].slug} {of}, and templates or exclude_templates under [sources.importer] leaves "
                "such imports out; change that first."
            )
        if selection.slugs:
            asked = sorted(selection.slugs)
            found = "is excluded by the other conditions" if imports else "is not there"
            raise ConfigError(f"Import {asked[0]} {found}: {instead_of(asked[0], ledger)}")
        names = _templates(imports)
        if selection.template is not None and selection.template not in names:
            raise ConfigError(
                f"No import has the template {selection.template!r}: {instead_of(selection.template, names)}"
            )

    def unmatched_templates(
        self, imports: Sequence[Import], ledger: Mapping[str, LedgerRow]
    ) -> Iterator[tuple[str, str]]:
        """Yield each name under `templates` and `exclude_templates` that no import has, with a sentence on it.

        Raises ConfigError where `templates` selects nothing, and nothing was ever read: most likely it is misspelt.
        """
        names, chosen = _templates(imports), self.settings.templates
        was_read = any(known.live and known.state is not State.excluded for known in ledger.values())
        if imports and chosen and names.isdisjoint(chosen) and not was_read:
            raise ConfigError(f"No import has the template {chosen[0]!r}: {instead_of(chosen[0], names)}")
        for key in ("templates", "exclude_templates"):
            for name in sorted(set(getattr(self.settings, key) or ()) - names):
                yield name, f"{key} names {name!r}, and no import has that template: {instead_of(name, names)}"


def _templates(imports: Sequence[Import]) -> set[str]:
    return {name for i in imports for name in (i.template_name, i.template_slug) if name}
