"""Generate rows as people upload them: blanks, mixed types, odd headers, nested values, dates as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from connector.sandbox.seeding import Dice

Row = dict[str, Any]

FIRST = ("Ana", "Björn", "Chloé", "Dmitri", "Eiríkur", "Fatima", "José", "Łukasz", "Mei", "Ngọc", "O'Brien", "李雷")
LAST = ("Müller", "García", "Smith", "Nowak", "Öztürk", "d'Angelo", "van der Berg", "Ødegård", "Иванова", "山田", "Lee")
CITIES = ("Berlin", "São Paulo", "Zürich", "Kraków", "New York", "東京", "Αθήνα", "Malmö", "  Paris", "Saint-Étienne")
COUNTRIES = ("DE", "Brazil", "CH", "Polska", "US", "JP", "", "NO", "france", "Côte d'Ivoire")
GOODS = ("Desk lamp", "Bürostuhl", "Cable 3 m", 'Screen 27"', "Café crème, 12×", "Notebook A5\nruled", "T-shirt 👕")
TEAMS = ("Sales", "sales ", "R&D", "Küche", "HR", "IT / Ops")


def customers(dice: Dice, n: int) -> Row:
    first, last = dice.pick(FIRST), dice.pick(LAST)
    return {
        "Nº": n + 1,
        "First name": first,
        "Last name": last,
        "E-mail ": "" if dice.chance(8) else f"{last}.{n}@example.com".lower().replace(" ", ""),
        "phone": _blank(dice, f"+49 30 {dice.below(10**7):07d}", 15),
        "Country": dice.pick(COUNTRIES),
        "address": {"city": dice.pick(CITIES), "zip": f"{dice.below(10**5):05d}", "geo": _point(dice)},
        "signup date": _date(dice),
        "VIP?": dice.pick((True, False, "yes", "no", None)),
        "balance (€)": _mixed(dice, dice.below(10**6) / 100),
        "tags": [dice.pick(("new", "b2b", "späť", "eu")) for _ in range(dice.below(4))],
    }


def orders(dice: Dice, n: int) -> Row:
    lines = [_order_line(dice) for _ in range(dice.below(3) + 1)]
    return {
        "Order ID": 10**6 + n,
        "barcode": 10**18 + dice.below(10**18) * 10,
        "customer": {"name": dice.pick(LAST), "Nº": dice.below(5000) + 1},
        "lines": lines,
        "Total": _mixed(dice, round(sum(line["qty"] * line["price €"] for line in lines), 2)),
        "total": f"{dice.below(10**5) / 100:.2f} EUR",
        "ordered at": _date(dice),
        "paid": not dice.chance(20),
        "Discount %": _blank(dice, dice.pick((0, 5, 10, 12.5)), 40),
        "comment": _blank(dice, dice.pick(("urgent!", "call first; then ring", '"gift"', "ne pas plier")), 60),
    }


def products(dice: Dice, n: int) -> Row:
    return {
        "SKU": f"{dice.below(10**4):04d}-{n:06d}",
        "Name": dice.pick(GOODS),
        "Größe (cm)": _mixed(dice, dice.below(4000) / 10),
        "price €": dice.below(10**5) / 100,
        "PRICE €": f"{dice.below(10**5) / 100:.2f}".replace(".", ","),
        "EAN": 4 * 10**12 + dice.below(10**12),
        "weight": _mixed(dice, dice.below(20000)),
        "dimensions": {"box": {"w": dice.below(90), "h": dice.below(90), "unit": {"name": "cm"}}},
        "colors": [dice.pick(("red", "grün", "noir")) for _ in range(dice.below(3))],
        "discontinued": dice.pick((False, False, True, None, "")),
        "serial": 2**63 + dice.below(2**40) if dice.chance(5) else dice.below(2**40),
    }


def employees(dice: Dice, n: int) -> Row:
    return {
        "employee_id": f"E{n:05d}",
        "Name": f"{dice.pick(LAST)}, {dice.pick(FIRST)}",
        "Team": dice.pick(TEAMS),
        "team": _blank(dice, dice.pick(TEAMS).strip().lower(), 50),
        "Start": _date(dice),
        "End": _blank(dice, _date(dice), 80),
        "Salary": _mixed(dice, 30000 + dice.below(600) * 100),
        "FTE": dice.pick((1, 0.5, 0.8, "80%", 1)),
        "manager": None if dice.chance(10) else f"E{dice.below(n + 1):05d}",
        "skills": {"languages": ["de", dice.pick(("en", "fr", "pl"))], "years": dice.below(30)},
        "select": dice.below(2),
    }


def attendees(dice: Dice, n: int) -> Row:
    return {
        "": n,
        "Full Name": f"{dice.pick(FIRST)} {dice.pick(LAST)}",
        "Ticket": dice.pick(("VIP", "regular", "Regular", "student")),
        "Check-in": _blank(dice, f"{8 + dice.below(4)}:{dice.below(60):02d}", 30),
        "Diet 🥗": _blank(dice, dice.pick(("vegan", "none", "no nuts")), 40),
        "Seat": dice.pick((dice.below(400), f"B{dice.below(40)}")),
        "ServiceView": {"score": _mixed(dice, dice.below(11)), "Would you come again?": dice.pick((True, False, None))},
    }


def stock(dice: Dice, n: int) -> Row:
    return {
        "Lager/Regal": f"{dice.pick('ABCDEF')}-{dice.below(100):02d}",
        "item": dice.pick(GOODS),
        "on hand": _mixed(dice, dice.below(1000) - 20),
        "On Hand": dice.below(1000),
        "counted": _date(dice),
        "batch": [{"no": 10**20 + dice.below(10**6), "expires": _date(dice)}] if dice.chance(60) else [],
        "unit cost": dice.pick((0.1, 1e-7, 12.0, 1e21, 0)),
        "row": n,
    }


TEMPLATES: Mapping[str, Callable[[Dice, int], Row]] = {
    "customers": customers,
    "orders": orders,
    "products": products,
    "employees": employees,
    "attendees": attendees,
    "stock": stock,
}


def _order_line(dice: Dice) -> Row:
    return {"sku": f"{dice.below(10**4):04d}", "qty": dice.below(9) + 1, "price €": dice.below(10**4) / 100}


def _point(dice: Dice) -> Row | None:
    if dice.chance(30):
        return None
    return {"lat": (dice.below(180000) - 90000) / 1000, "lon": (dice.below(360000) - 180000) / 1000}


def _date(dice: Dice) -> str:
    year, month, day = 2019 + dice.below(6), dice.below(12) + 1, dice.below(28) + 1
    style = dice.below(10)
    if style == 0:
        return f"{day}.{month}.{year}"
    if style == 1:
        return f"{month}/{day}/{year % 100:02d}"
    return f"{year}-{month:02d}-{day:02d}"


def _blank(dice: Dice, value: Any, percent: int) -> Any:
    """Return the value, or sometimes the content of an empty cell."""
    return dice.pick(("", None)) if dice.chance(percent) else value


def _mixed(dice: Dice, value: float) -> Any:
    """Return the number, or sometimes a text that somebody typed instead."""
    if dice.chance(6):
        return dice.pick(("N/A", "-", "", None, "ca. 5", f"{value} "))
    return value
