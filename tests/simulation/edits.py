"""Edit the service between any two requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from connector.sandbox import STATUSES, TEMPLATES, Service, Template
from connector.sandbox.seeding import uuid_from
from connector.sandbox.switches import Order
from tests.simulation.scenario import EDGES, ODD_ROWS, ORDERS, SPOILED, add_import

Edit = Callable[[Service, Random], str]


def random_edit(service: Service, dice: Random) -> str:
    """Make one edit; return a description."""
    edit = dice.choices([edit for edit, _ in EDITS], [weight for _, weight in EDITS])[0]
    return edit(service, dice)


def _script(service: Service, dice: Random) -> str:
    return service.edit_randomly(1, seed=dice.getrandbits(32))[0]


def _of_live(edit: Callable[[Service, Random, str], str]) -> Edit:
    def on_some(service: Service, dice: Random) -> str:
        slugs = service.slugs()
        return edit(service, dice, dice.choice(slugs)) if slugs else "nothing to edit"

    return on_some


def _add(service: Service, dice: Random) -> str:
    names = sorted({t.name for t in service.templates()} & {"customers", "orders", "stock"}) or ["stock"]
    return f"added import {add_import(service, dice, names, sizes=(0, 1, 3, 40, 100, 130))}"


def _restore(service: Service, dice: Random) -> str:
    gone = [slug for slug, found in service._imports.items() if found.deleted]
    if not gone:
        return "nothing to restore"
    slug = dice.choice(gone)
    service.restore_import(slug)
    return f"restored import {slug}"


def _mass_delete(service: Service, dice: Random) -> str:
    slugs = service.slugs()
    share = dice.choice((0.3, 0.6, 1.0))
    gone = [slug for slug in slugs if dice.random() < share]
    for slug in gone:
        service.delete_import(slug)
    return f"deleted {len(gone)} of {len(slugs)} imports"


def _replace_import(service: Service, dice: Random) -> str:
    """Delete an import and add another one, so that the number of imports stays the same."""
    slugs = service.slugs()
    if slugs:
        service.delete_import(dice.choice(slugs))
    return f"replaced an import: {_add(service, dice)}"


def _template(service: Service, dice: Random, slug: str) -> str:
    template = dice.choice((None, "Odd rows", *(t.name for t in service.templates())))
    service.set_template(slug, template)
    return f"import {slug} is now of {template}"


def _rename(service: Service, dice: Random) -> str:
    templates = service.templates()
    if not templates:
        return "no template to rename"
    chosen = dice.choice(templates)
    service.rename_template(chosen.slug, f"{chosen.name}!")
    return f"renamed template {chosen.name}"


def _namesake(service: Service, dice: Random, slug: str) -> str:
    templates = service.templates()
    name = dice.choice(templates).name if templates else "stock"
    service.set_template(slug, Template(name, f"namesake-of-{name}"))
    return f"import {slug} is now of another template called {name}"


def _lie(service: Service, dice: Random, slug: str) -> str:
    found = service.find(slug)
    assert found is not None
    shown = max(0, len(found.rows) + dice.choice((-2, -1, 1, 3)))
    if shown == service.switches.max_per_page:
        shown += 1  # a first page with row_count rows looks like the end, although a clamp may have cut it there
    if service.switches.short_pages:
        shown = (
            len(found.rows) + 400
        )  # row_count rows look complete (same reason), although a page was cut short behind them
    service.set_row_count(slug, shown)
    return f"import {slug} claims {shown} rows"


def _truth(service: Service, dice: Random, slug: str) -> str:
    service.set_row_count(slug, None)
    return f"import {slug} claims what it has"


def _status(service: Service, dice: Random, slug: str) -> str:
    status = dice.choice(STATUSES)
    service.set_status(slug, status)
    return f"import {slug} is now {status}"


def _metadata(service: Service, dice: Random, slug: str) -> str:
    chosen = dice.choice((None, {}, {"n": 2.5}, {"n": dice.randrange(9), "Key": "v"}))
    shape = Random(f"shape {slug} {service.version}").choice((None, None, [1], {}, {"m": 1}, True, "text"))
    service.set_metadata(slug, chosen if shape is None else {**(chosen or {}), "n": shape})
    return f"import {slug} has other metadata"


def _empty(service: Service, dice: Random, slug: str) -> str:
    records = list(service.record_slugs(slug))
    for record in records:
        service.delete_row(slug, record)
    return f"emptied import {slug} of {len(records)} rows"


def _swap(service: Service, dice: Random, slug: str) -> str:
    """Delete a row and add another one, so that the count stays the same."""
    records = list(service.record_slugs(slug))
    if records:
        service.delete_row(slug, dice.choice(records))
    row = dice.choice(ODD_ROWS)
    service.append_rows(slug, [row])
    return f"swapped a row of {slug}"


def _odd(service: Service, dice: Random, slug: str) -> str:
    service.append_rows(slug, [dice.choice(ODD_ROWS) for _ in range(dice.randint(1, 3))])
    return f"appended odd rows to {slug}"


def _spoil(service: Service, dice: Random, slug: str) -> str:
    text = dice.choice(SPOILED) % dice.randrange(10**6)
    service.add_raw_record(slug, text)
    return f"spoiled import {slug} with {text}"


def _order(service: Service, dice: Random) -> str:
    imports: Order = dice.choice(ORDERS)
    records: Order = dice.choice(ORDERS)
    service.switches = replace(service.switches, import_order=imports, record_order=records)
    return f"lists imports in order {imports}, records in order {records}"


def shift(service: Service, dice: Random, path: str) -> str:
    """Replace an element of the list at this path by another one, so that its pages shift and its length stays."""
    if path.endswith("/imports"):
        return _replace_import(service, dice)
    slug = path.rsplit("/", 2)[-2]
    if not path.endswith("/records") or service.find(slug) is None:
        return "nothing to shift"
    return _swap(service, dice, slug)


def move(service: Service, dice: Random) -> str:
    """Move records to another import; now and then as many come back, so that both row_counts stay."""
    slugs = service.slugs()
    if len(slugs) < 2:
        return "nothing to move to"
    here, there = dice.sample(slugs, 2)
    leaving, coming = _movable(service, here), _movable(service, there)
    if not leaving:
        return f"nothing to move from {here}"
    count = len(leaving) if dice.random() < 0.1 else dice.randint(1, min(5, len(leaving)))
    back = min(count, len(coming)) if dice.random() < 0.3 else 0
    for record in dice.sample(leaving, count):
        service.move_row(here, record, there)
    for record in dice.sample(coming, back):
        service.move_row(there, record, here)
    return f"moved {count} rows of {here} to {there}, and {back} back"


def rename(service: Service, dice: Random) -> str:
    """Let two templates swap their names, or one take a new or its first name."""
    templates = sorted(service.templates(), key=lambda template: template.slug)
    if not templates:
        return "no template to rename"
    one, other = dice.choice(templates), dice.choice(templates)
    if one.slug != other.slug and dice.random() < 0.5:
        service.rename_template(one.slug, other.name)
        service.rename_template(other.slug, one.name)
        return f"templates {one.name} and {other.name} swapped their names"
    first = (name for name in (*TEMPLATES, "Odd rows") if template_slug(service, name) == one.slug)
    name = dice.choice((f"{one.name} of old", next(first, "stock")))
    service.rename_template(one.slug, name)
    return f"template {one.name} is now called {name}"


def template_slug(service: Service, name: str) -> str:
    """Return the slug of the template that had this name first."""
    return uuid_from(service.seed, "template", name)


def edge(service: Service, dice: Random) -> str:
    """Give a record numbers at the edge of a type, or turn the sign of one that it has."""
    slugs = service.slugs()
    if not slugs:
        return "nothing to edit"
    slug = dice.choice(slugs)
    if dice.random() < 0.1:
        service.set_metadata(slug, {"n": dice.choice((0, 0.0, -0.0, 2**63, 1e300))})
        return f"import {slug} has an edge in its metadata"
    records = _movable(service, slug)
    some = dice.choice(EDGES), dice.choice(EDGES)
    if not records or dice.random() < 0.2:
        service.append_rows(slug, [_edges(*some)])
        return f"appended an edge to {slug}"
    found = service.find(slug)
    assert found is not None
    numbers = {found.rows.slug(index): row.text for index, row in found.rows.touched.items() if row.text[:8] == _EDGE}
    if numbers and dice.random() < 0.6:
        record = dice.choice(sorted(numbers))
        number = numbers[record].removeprefix(_EDGE).partition(",")[0]
        turned = number[1:] if number[0] == "-" else f"-{number}"
        if number.lstrip("-")[0].isdigit():
            some = turned, dice.choice(EDGES)
    else:
        record = dice.choice(records)
    service.edit_row(slug, record, _edges(*some))
    return f"record {record} of {slug} has {some}"


_EDGE = '{"edge":'


def _edges(one: str, other: str) -> str:
    return f'{_EDGE}{one},"k":{{"edge":{other}}},"edges":[{one},{other}]}}'


def _movable(service: Service, slug: str) -> list[str]:
    found = service.find(slug)
    assert found is not None
    whole = {found.rows.slug(index) for index, row in found.rows.touched.items() if row.whole}
    return [record for record in service.record_slugs(slug) if record not in whole]


_another_template = _of_live(_namesake)
# Each makes the warehouse permanently wider or suddenly smaller, so they are excluded when growth is measured.
UNSTEADY: tuple[Edit, ...] = (_rename, _another_template, _mass_delete)
EDITS: tuple[tuple[Edit, int], ...] = (
    (_script, 24),
    (_add, 4),
    (_restore, 3),
    (_mass_delete, 1),
    (_replace_import, 3),
    (_of_live(_template), 2),
    (_rename, 1),
    (_another_template, 1),
    (_of_live(_lie), 2),
    (_of_live(_truth), 1),
    (_of_live(_status), 3),
    (_of_live(_metadata), 2),
    (_of_live(_empty), 1),
    (_of_live(_swap), 3),
    (_of_live(_odd), 3),
    (_of_live(_spoil), 1),
    (_order, 1),
)
