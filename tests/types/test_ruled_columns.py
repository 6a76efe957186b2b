"""Every column of a table of versions that may hold a value under a rule is named, others are not."""

from __future__ import annotations

import pytest

from connector.transform.privacy import Privacy
from connector.transform.schema import Field
from connector.warehouse.ruled_columns import ruled_columns

FIELDS = [
    (("who",), Field(("metadata", "who"), "metadata__who", "text")),
    (("who",), Field(("extra", "who"), "extra__who", "text")),
    (("at", "home"), Field(("metadata", "at", "home"), "metadata__at__home", "json", has_text=True)),
]
SYSTEM = ["slug", "status"]
COLUMNS = [*SYSTEM, "_valid_to", *(known.column for _, known in FIELDS), "metadata__at__home__v_text"]


@pytest.mark.parametrize(
    ("rules", "ruled"),
    [
        ({}, []),
        ({"other": "drop"}, []),
        ({"who": "drop"}, ["metadata__who", "extra__who"]),
        ({"at.home.street": "null"}, ["metadata__at__home", "metadata__at__home__v_text"]),
        ({"at": "drop"}, ["metadata__at__home", "metadata__at__home__v_text"]),
        ({"allow": ["who"]}, ["metadata__at__home", "metadata__at__home__v_text"]),
    ],
)
def test_fields_of_one_path_are_all_named(rules: dict[str, object], ruled: list[str]) -> None:
    protection = Privacy.parse({"metadata": rules}, None).of_metadata
    assert ruled_columns([protection] if protection else [], FIELDS, COLUMNS, SYSTEM) == ruled


def test_a_column_that_nothing_explains_may_hold_anything() -> None:
    protection = Privacy.parse({"metadata": {"other": "drop"}}, None).of_metadata
    assert protection is not None
    assert ruled_columns([protection], FIELDS, [*COLUMNS, "gone__was_1"], SYSTEM) == ["gone__was_1"]
