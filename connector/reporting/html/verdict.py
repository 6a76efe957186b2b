"""Write the headline: whether all is loaded and reconciled, and if not, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from connector.reporting.html.facts import Facts
from connector.reporting.html.wording import amount
from connector.standing import Standing

OUTCOMES = {"partial": "was partial", "interrupted": "was interrupted", "failed": "has failed"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons` say why it is not good; `notes` are shown in either case."""

    kind: Literal["good", "attention", "empty"]
    sentence: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(facts: Facts) -> Verdict:
    if not facts.synced:
        return Verdict(
            "empty", "Nothing has been loaded yet.", notes=("`importer-sync run` makes the first full sync.",)
        )
    reasons, notes = tuple(_reasons(facts)), tuple(_notes(facts))
    if reasons:
        return Verdict("attention", "Not everything is loaded and reconciled.", reasons, notes)
    return Verdict("good", "Everything is loaded and reconciled.", notes=notes)


def _reasons(facts: Facts) -> Iterator[str]:
    last = facts.last_run
    if facts.fresh_as_of is None:
        yield "No full run has succeeded yet."
    if last is not None and last.status == "running":
        yield "A run is under way, or died without recording a result."
    elif last is not None and last.status != "succeeded":
        yield f"The last run {OUTCOMES.get(last.status, 'did not succeed')}."
    for standing, one, many in (
        (Standing.failed, "import failed", "imports failed"),
        (Standing.unreconciled, "import does not reconcile", "imports do not reconcile"),
        (Standing.damaged, "import differs from what was loaded", "imports differ from what was loaded"),
        (Standing.waiting, "import is not loaded yet", "imports are not loaded yet"),
    ):
        if count := facts.standings.get(standing, 0):
            yield f"{amount(count, one, many)}."
    if facts.unknown_imports:
        imports = amount(facts.unknown_imports, "import")
        yield f"There are rows of {imports} that the ledger does not list; see `importer-sync doctor`."
    if facts.rejected:
        yield f"{amount(facts.rejected, 'record was', 'records were')} rejected."


def _notes(facts: Facts) -> Iterator[str]:
    if count := facts.standings.get(Standing.unfinished, 0):
        which, them = ("import is", "it") if count == 1 else ("imports are", "them")
        yield f"{count:,} {which} still being uploaded to the service; each run reads {them} again."
    if count := facts.standings.get(Standing.accepted, 0):
        imports = amount(count, "import has", "imports have")
        yield f'{imports} other than row_count records, which reconcile = "off" takes as they are.'
    if not facts.typed:
        yield "There are no typed tables, so there are no field profiles."
