"""Check that no template is read without the privacy rules that it was read under by an earlier name."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.oracle import Ran, none_of
from tests.simulation.protecting import Rules, named_sections
from tests.simulation.watching import Watch


class ReadUnder:
    """The section by whose name the template of each import was called when the import was read last."""

    def __init__(self) -> None:
        self._sections: dict[str, tuple[str, str]] = {}  # import → template, section

    def check(self, ran: Ran, watch: Watch, rules: Rules) -> None:
        """Check that this run read nothing of a template that its section does not name any more."""
        sections = named_sections(rules)
        names = dict(_names(watch))
        lost = {
            template
            for template, section in self._sections.values()
            if section in sections and template in names and not sections & {template, names[template]}
        }
        before = ran.before.by_key("sync_imports", "slug")
        read = {
            slug: row
            for slug, row in ran.after.by_key("sync_imports", "slug").items()
            if row["_dlt_load_id"] != before.get(slug, {}).get("_dlt_load_id")
        }
        loaded = {row["last_synced_at"] for row in before.values()}
        fresh = (
            slug
            for slug, row in read.items()
            if row["state"] in ("synced", "unreconciled")
            and row["last_synced_at"] not in loaded
            and row["template_slug"] in lost
        )
        none_of(fresh, "a renamed template is not read without its rules")
        for slug, row in read.items():
            self._sections.pop(slug, None)
            template = row.get("template_slug") or ""
            name = names.get(template)
            if ran.tally is not None and row["state"] == "synced" and name in sections:
                self._sections[slug] = template, name
        self._sections = {slug: each for slug, each in self._sections.items() if each[1] in sections}


def _names(watch: Watch) -> Iterator[tuple[str, str]]:
    """Yield the templates that had one name during the whole run."""
    changed = {
        shown[0]
        for slug in watch.touched_imports
        for truths in (watch.at_start, watch.truth)
        if slug in truths and (shown := truths[slug].shown["template"])
    }
    for truth in watch.steady_imports().values():
        shown = truth.shown["template"]
        if shown and shown[0] not in changed:
            yield shown
