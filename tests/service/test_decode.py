"""Pages byte for byte, and every kind of element that can't be read, next to neighbours that can."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.models import Import, Template, microseconds
from connector.service import decode, fields
from connector.service.decode import (
    WrongShape,
    decode_import,
    decode_import_page,
    decode_record_page,
)
from connector.service.fields import is_naive, parse_instant
from connector.transform.json_slices import NotJson, array_elements, is_json, object_members
from tests.service.conftest import Ask
from tests.service.hostile import import_row, page, row

DEEP = '{"a":' + "[" * 20_000 + "]" * 20_000 + "}"
EXACT = [
    "{}",
    "{ }",
    '{"a": 0.10, "b":1.50e+02,"c":-0,"d":-0.0,"e":1E400}',
    '{"a":123456789012345678901234567890,"b":0.1000000000000000055511151231257827}',
    '{"z":1,"a":2,"z":3}',
    '{ "a" :\t1 ,\r\n "b" : [ 1 , 2 ] }',
    r'{"a":"\ud800"}',
    r'{"\udc00":"x\ud800y"}',
    r'{"a":"\ud83d\ude00\u00e4\/\u0000"}',
    r'{"a":"}]\",{[\\"}',
    '{"ключ":"价格 😀"}',
    '{"a":null,"b":true,"c":false,"d":{},"e":[],"f":[{}]}',
    '{"":""}',
    DEEP,
]


def texts(*elements: str | bytes) -> bytes:
    found = [element.encode() if isinstance(element, str) else element for element in elements]
    return b'{"data":[' + b" ,\n ".join(found) + b'],"metadata":{}}'


@pytest.mark.parametrize("data", EXACT, ids=lambda data: data[:30])
@pytest.mark.parametrize("neighbour", ["", '{"slug":7}', r'{"slug":"n","data":{"a":"\ud800"}}'], ids=["", "bad", "odd"])
def test_data_comes_back_byte_for_byte(data: str, neighbour: str) -> None:
    elements = [row("r1", data, sort=1), *([neighbour] if neighbour else [])]
    found = decode_record_page(texts(*elements))
    assert found.records[0].data == data.encode()
    assert found.records[0].slug == "r1"
    assert found.size == len(elements) == len(found.records) + len(found.rejects)


@pytest.mark.parametrize("data", EXACT[:-1], ids=lambda data: data[:30])
def test_data_comes_back_byte_for_byte_over_the_wire(ask: Ask, data: str) -> None:
    answer = ask([page(row("r1", data), row("r2", data))])
    assert [record.data for record in answer.value.records] == [data.encode()] * 2


BAD_RECORDS: list[tuple[str | bytes, str, str | None]] = [
    ("7", "the record is not an object", None),
    ("null", "the record is not an object", None),
    ('["slug"]', "the record is not an object", None),
    ("{}", "slug is missing", None),
    ('{"slug":null,"data":{}}', "slug is missing", None),
    ('{"slug":7,"data":{}}', "slug is not a string", None),
    ('{"slug":"","data":{}}', "slug is empty", None),
    (r'{"slug":"\ud800","data":{}}', "slug holds half a surrogate pair", None),
    (r'{"slug":"a\u0000","data":{}}', "slug holds a NUL character", None),
    (row("a" * 2001), "slug is longer than 2,000 bytes", "a" * 2001),
    (row("é" * 1001, extra=1), "slug is longer than 2,000 bytes", "é" * 1001),
    ('{"slug":"a"}', "data is missing", "a"),
    ('{"slug":"a","data":null}', "data is missing", "a"),
    ('{"slug":"a","data":[1]}', "data is not an object", "a"),
    ('{"slug":"a","data":"{}"}', "data is not an object", "a"),
    ('{"slug":"a","data":{},"created_at":5}', "created_at is not a date-time", "a"),
    ('{"slug":"a","data":{},"created_at":"soon"}', "created_at is not a date-time", "a"),
    ('{"slug":"a","data":{},"updated_at":"2026-13-01T00:00:00Z"}', "updated_at is not a date-time", "a"),
    ('{"slug":"a","data":{},"updated_at":"0001-01-01T00:00:00+02:00"}', "updated_at is not a date-time", "a"),
    ('{"slug":"a","data":{},"updated_at":"12026-01-01T00:00:00Z"}', "updated_at is not a date-time", "a"),
    ('{"slug":"a","data":{},"sort":"1"}', "sort is not an integer", "a"),
    ('{"slug":"a","data":{},"sort":1.5}', "sort is not an integer", "a"),
    ('{"slug":"a","data":{},"sort":true}', "sort is not an integer", "a"),
    ('{"slug":"a","data":{},"sort":9223372036854775808}', "sort does not fit into 64 bits", "a"),
    ('{"slug":"a","data":{"x":NaN}}', "the record is not JSON", "a"),
    ('{"slug":"a","data":{"x":01}}', "the record is not JSON", "a"),
    ('{"slug":"a","data":{"x":"\t"}}', "the record is not JSON", "a"),
    ('{"slug":"a","data":{"x":[1,]}}', "the record is not JSON", "a"),
    (b'{"slug":"a","data":{"x":"\xff"}}', "the record is not UTF-8 text", "a"),
]


@pytest.mark.parametrize(("bad", "reason", "slug"), BAD_RECORDS, ids=lambda case: str(case)[:60])
def test_a_bad_record_is_rejected_in_words_and_its_neighbours_load(
    bad: str | bytes, reason: str, slug: str | None
) -> None:
    found = decode_record_page(texts(row("before"), bad, row("after")))
    assert [record.slug for record in found.records] == ["before", "after"]
    (reject,) = found.rejects
    assert (reject.reason, reject.record_slug) == (reason, slug)
    expected = bad if isinstance(bad, str) else bad.decode("utf-8", "backslashreplace")
    assert reject.payload == expected
    assert found.size == 3


def test_a_slug_may_have_as_many_bytes_as_an_index_takes() -> None:
    slugs = ["a" * 501, "a" * 2000, "é" * 1000, "😀" * 500]
    found = decode_record_page(texts(*map(row, slugs)))
    assert [record.slug for record in found.records] == slugs
    imports = decode_import_page(texts(*map(import_row, [*slugs, "😀" * 501])))
    assert [listed.slug for listed in imports.imports] == slugs
    assert [(bad.record_slug, bad.reason) for bad in imports.rejects] == [
        ("😀" * 501, "slug is longer than 2,000 bytes")
    ]


def test_fields_that_may_be_missing() -> None:
    found = decode_record_page(texts('{"slug":"a","data":{}}', row("b", created_at=None, updated_at=None, sort=None)))
    assert [(r.created_at, r.updated_at, r.sort) for r in found.records] == [(None, None, None)] * 2
    found = decode_record_page(texts('{"slug":"a","data":{},"sort":-2.0,"extra":[1]}'))
    assert found.records[0].sort == -2


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-02T03:04:05Z", (5, 0)),
        ("2026-01-02T03:04:05", (5, 0)),
        ("2026-01-02 03:04:05", (5, 0)),
        ("2026-01-02t03:04:05.5z", (5, 500_000)),
        ("2026-01-02T05:04:05.123456+02:00", (5, 123_456)),
        ("2026-01-02T05:04:05.1234569+0200", (5, 123_456)),
        ("2026-01-01T21:34:05.123456999-05:30", (5, 123_456)),
        ("20260102T030405Z", (5, 0)),
    ],
)
def test_times_are_instants(text: str, instant: tuple[int, int]) -> None:
    expected = datetime(2026, 1, 2, 3, 4, *instant, tzinfo=UTC)
    assert parse_instant(text) == expected
    found = decode_record_page(texts(row(created_at=text, updated_at=text))).records[0]
    assert found.created_at == found.updated_at == microseconds(expected)
    assert parse_instant(text).tzinfo is UTC


SPELLED = st.one_of(
    st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,7})?(Z|[+-][0-9]{2}:?[0-9]{2})?",
        fullmatch=True,
    ),
    st.from_regex(r"[0-9]{4}-?[01][0-9]-?[0-3][0-9][Tt ][0-9:.,]{4,15}[Zz]?([+-][0-9]{1,4})?", fullmatch=True),
    st.datetimes().map(lambda moment: f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"),
    st.sampled_from(["0000-12-31T00:00:00Z", "0001-01-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-12-31T23:59:60Z"]),
    st.sampled_from(["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-0530"]),
)
PARSED_AT_ONCE = 20  # rows with two times each, more than `decode` parses one by one


@given(st.lists(SPELLED, min_size=1, max_size=3), st.booleans())
@settings(max_examples=1_000)
def test_times_of_a_page_are_those_of_each_row(spelled: list[str], alike: bool) -> None:
    """A page of times that are spelled alike is read at once, and nothing must come of it that each alone is not."""
    shown = [spelled[0]] * PARSED_AT_ONCE if alike else spelled
    found = decode_record_page(texts(*(row(f"r{n}", created_at=text, updated_at=text) for n, text in enumerate(shown))))
    times = {record.slug: (record.created_at, record.updated_at) for record in found.records}
    for n, text in enumerate(shown):
        try:
            expected = microseconds(parse_instant(text))
        except (ValueError, OverflowError):
            assert f"r{n}" not in times
        else:
            assert times[f"r{n}"] == (expected, expected)


def test_a_time_that_no_destination_has_does_not_stop_the_other_rows_of_its_page() -> None:
    """Arrow would read it as the year 10000, in which some destinations refuse the whole package."""
    usual, beyond = "2026-01-01T00:00:00-0530", "9999-12-31T23:59:59-0530"
    rows = [row(f"r{n}", created_at=usual, updated_at=beyond if n == 7 else usual) for n in range(PARSED_AT_ONCE)]
    found = decode_record_page(texts(*rows))
    assert (len(found.records), [reject.record_slug for reject in found.rejects]) == (PARSED_AT_ONCE - 1, ["r7"])


@pytest.mark.parametrize("ending", ["Z", "+00:00"], ids=["all at once", "one by one"])
def test_each_row_has_its_own_times(ending: str) -> None:
    """None is another row's, nor is one that was changed taken for one that was created."""
    shown = [(f"2026-01-01T00:00:0{n}{ending}", f"2026-01-02T00:00:0{n}{ending}") for n in range(3)]
    found = decode_record_page(
        texts(*(row(f"r{n}", created_at=created, updated_at=updated) for n, (created, updated) in enumerate(shown)))
    )
    expected = [tuple(microseconds(parse_instant(text)) for text in times) for times in shown]
    assert [(record.created_at, record.updated_at) for record in found.records] == expected


BAD_IMPORTS: list[tuple[str, str, str | None]] = [
    ("7", "the import is not an object", None),
    (import_row(without="slug"), "slug is missing", None),
    (import_row(slug=".."), "slug can't stand in an address", ".."),
    (import_row(without="row_count"), "row_count is missing", "i1"),
    (import_row(row_count="3"), "row_count is not an integer", "i1"),
    (import_row(without="created_at"), "created_at is missing", "i1"),
    (import_row(without="updated_at"), "updated_at is missing", "i1"),
    (import_row(updated_at="now"), "updated_at is not a date-time", "i1"),
    (import_row(without="status"), "status is missing", "i1"),
    (import_row(status=3), "status is not a string", "i1"),
    (import_row(template="T"), "template is not an object", "i1"),
    (import_row(template={"name": "T"}), "template.slug is missing", "i1"),
]


@pytest.mark.parametrize(("bad", "reason", "slug"), BAD_IMPORTS, ids=lambda case: str(case)[:50])
def test_a_bad_import_is_rejected_in_words_and_its_neighbours_load(bad: str, reason: str, slug: str | None) -> None:
    found = decode_import_page(texts(import_row("before"), bad, import_row("after")))
    assert [each.slug for each in found.imports] == ["before", "after"]
    (reject,) = found.rejects
    assert (reject.reason, reject.record_slug, reject.payload) == (reason, slug, bad)
    with pytest.raises(WrongShape):
        decode_import(bad.encode())


@pytest.mark.parametrize("lists", [("[]", "rows"), ("rows", "[]"), ("rows", "rows")])
def test_a_page_with_two_lists_of_imports_is_refused(lists: tuple[str, str]) -> None:
    """One of them would be dropped, and no count shows how many imports there are."""
    rows = f"[{import_row('i1')}]"
    members = ",".join(f'"data":{rows if each == "rows" else each}' for each in lists)
    with pytest.raises(WrongShape, match="data twice"):
        decode_import_page(f"{{{members}}}".encode())
    beside = f'{{"data":[{import_row("i1", metadata={"data": ["data"]})}],"more":{{"data":1}}}}'
    assert [each.slug for each in decode_import_page(beside.encode()).imports] == ["i1"]


def read(**fields: Any) -> Import:
    return decode_import(import_row(**fields).encode())


def test_an_import() -> None:
    found = read(
        template={"name": "People", "slug": "t1"}, colour="red", model_config=1, metadata_json=2, fingerprint=3
    )
    assert found.template == Template(name="People", slug="t1")
    assert found.updated_at == datetime(2026, 1, 1, 22, 0, 0, 500_000, tzinfo=UTC)
    assert found.fingerprint == (found.updated_at, 3, "completed")
    assert found.metadata_json is None
    assert found.extra_json == b'{"colour":"red","model_config":1,"metadata_json":2,"fingerprint":3}'
    assert read().extra_json is None
    assert read(status="paused").status == "paused"
    assert [read(status=each).status for each in ("Completed", "SUBMITTED ", "Paused")] == [
        "completed",
        "submitted",
        "Paused",
    ]
    assert read(template=None).template is None
    assert read(template={"slug": "t1"}).template == Template(name="t1", slug="t1")


@pytest.mark.parametrize("data", EXACT, ids=lambda data: data[:30])
def test_what_the_interface_does_not_name_comes_back_byte_for_byte(data: str) -> None:
    text = row("r1")[:-1] + ', "row_errors" : ' + data + ',"\\u00e9\\"":1.10}'
    extra = b'{"row_errors":' + data.encode() + ',"é\\"":1.10}'.encode()
    bodies = [texts(text, row("r2")), texts(text, row("r2"), "7")]
    for body in bodies:
        found = decode_record_page(body[:-1] + b', "metadata" : ' + data.encode() + b"}")
        assert [record.extra for record in found.records] == [extra, None]
        assert found.metadata == data.encode()
    assert decode_record_page(texts(text)).metadata == b"{}"
    assert decode_record_page(b'{"data":[],"metadata":null}').metadata is None
    listed = decode_import((import_row()[:-1] + ', "row_errors" : ' + data + "}").encode())
    assert listed.extra_json == b'{"row_errors":' + data.encode() + b"}"


def test_what_a_template_has_besides_is_kept() -> None:
    assert read(template={"slug": "t1", "version": 3}, n=1).extra_json == b'{"n":1,"template":{"version":3}}'


@pytest.mark.parametrize("data", EXACT, ids=lambda data: data[:30])
def test_metadata_comes_back_byte_for_byte(data: str) -> None:
    text = import_row()[:-1] + ', "metadata" : ' + data + "\n}"
    found = decode_import_page(texts(text, text))
    assert [each.metadata_json for each in found.imports] == [data.encode()] * 2
    assert decode_import(text.encode()).metadata_json == data.encode()
    assert read(metadata=None).metadata_json is None


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_page_cut_anywhere_is_no_page(cut: int) -> None:
    whole = texts(row("r1", r'{"a":"\ud800]}"}'), "7", row("r2"))
    with pytest.raises(NotJson):
        decode_record_page(whole[:-cut])
    with pytest.raises(NotJson):
        decode_import_page(whole[:-cut])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=()) | st.sampled_from('"\\{}[],:'), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
BLANK = st.text(" \t\r\n", max_size=3)


@st.composite
def written(draw: st.DrawFn, values: st.SearchStrategy[Any] = JSON) -> str:
    """A value as JSON text with odd whitespace, in ASCII (so with lone surrogates as escapes) or not."""

    def write(value: Any) -> str:
        pad = draw(BLANK)
        if isinstance(value, dict):
            members = [f"{draw(BLANK)}{write_text(key)}{draw(BLANK)}:{pad}{write(each)}" for key, each in value.items()]
            return "{" + f"{draw(BLANK)},".join(members) + pad + "}"
        if isinstance(value, list):
            return "[" + ",".join(draw(BLANK) + write(each) + pad for each in value) + pad + "]"
        return write_text(value)

    def write_text(value: Any) -> str:
        plain = json.dumps(value, ensure_ascii=False)
        return plain if plain.isascii() or (draw(st.booleans()) and encodable(plain)) else json.dumps(value)

    return write(draw(values))


def encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


OBJECTS = written(st.dictionaries(st.text(max_size=4), JSON, max_size=4))


@settings(max_examples=150, deadline=None)
@given(st.lists(OBJECTS, max_size=4), st.lists(BLANK, min_size=6, max_size=6))
def test_any_page_comes_back_byte_for_byte(datas: list[str], blank: list[str]) -> None:
    a, b, c, d, e, f = blank
    rows = [f'{a}{{{b}"slug":"r{number}"{c},{d}"data":{e}{data}{f}}}{a}' for number, data in enumerate(datas)]
    body = f'{a}{{{b}"data"{c}:{d}[{",".join(rows)}]{f},"x":[{{"data":[1]}}]}}{e}'.encode()
    found = decode_record_page(body)
    assert [record.data for record in found.records] == [data.encode() for data in datas]
    assert found.rejects == []


@settings(max_examples=150, deadline=None)
@given(st.lists(written(), max_size=5), BLANK)
def test_any_slices_are_exact(values: list[str], blank: str) -> None:
    texts = [value.encode() for value in values]
    assert array_elements(f"[{','.join(blank + value + blank for value in values)}]".encode()) == texts
    members = ",".join(f'{blank}"k{number}"{blank}:{blank}{value}' for number, value in enumerate(values))
    assert list(object_members(f"{{{members}{blank}}}".encode()).values()) == texts
    assert all(is_json(text) for text in texts)


@settings(max_examples=300, deadline=None)
@given(written(), st.integers(0, 200), st.sampled_from(list('"\\{}[],:01-+.eE \ntfnN\x00')), st.booleans())
def test_is_json_agrees_with_the_standard_library(text: str, at: int, character: str, insert: bool) -> None:
    at %= len(text)
    damaged = text[:at] + character + text[at + (not insert) :]
    assert is_json(damaged.encode()) == standard(damaged)


@pytest.mark.parametrize(
    "text",
    ["[1,", '{"a":1,', "[1}", '{"a":1]', "[[1]", "[]]", '{"a"}', '{"a":}', "[,]", "{,}", "", " ", "1 2", "-"],
)
def test_what_is_not_json(text: str) -> None:
    assert not is_json(text.encode())


def standard(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("date", ["2026-01-05", "20260105", "2026-W02-1", "2026W021"])
@pytest.mark.parametrize("time", ["T06:30:00", "T063000", "T06:30:00.123456", "T06"])
@pytest.mark.parametrize("zone", ["", "Z", "z", "+02:00", "-05:00", "-0500", "+00"])
def test_an_import_says_whether_its_time_came_without_an_offset(date: str, time: str, zone: str) -> None:
    text = date + time + zone
    parse_instant(text)
    assert is_naive(text) == (zone == "")
    assert decode_import(import_row("i", updated_at=text).encode()).updated_naive == (zone == "")


TEXTS = st.one_of(
    st.sampled_from(
        [
            '"a"',
            '"."',
            '".."',
            '""',
            '"a\\u0000b"',
            '"\\ud800"',
            '"\\ud83d\\ude00"',
            '"\\/"',
            '"\t"',
            "null",
            "7",
            "[]",
            "true",
        ]
    ),
    st.text(max_size=3).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from([500, 501, 2_000, 2_001]).map(lambda size: json.dumps("a" * size)),
    st.sampled_from([500, 501, 1_000, 1_001]).map(lambda size: json.dumps("é" * size, ensure_ascii=False)),
)
COUNTS = st.one_of(
    st.sampled_from(["3", "-0", "0", "-1", "3.0", "-0.0", "1e2", "1.5", "1e400", "01", "true", "null", '"3"', "[3]"]),
    st.integers(2**63 - 2, 2**63 + 1).map(str),
    st.integers(-(2**63) - 1, -(2**63) + 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
TEMPLATES = st.one_of(
    st.sampled_from(
        ["null", "7", '"t"', "{}", '{"name":"T"}', '{"slug":"t","name":7}', '{"slug":"t","name":"T","x":01}']
    ),
    st.tuples(TEXTS, TEXTS).map(lambda both: f'{{"slug":{both[0]},"name":{both[1]}}}'),
    st.just('{"slug":"t","name":"T","x":{"y": [1.0]}}'),
)
TIMES = st.one_of(SPELLED.map(json.dumps), st.datetimes().map(lambda at: json.dumps(at.isoformat())), TEXTS)
MEMBERS: dict[str, st.SearchStrategy[str]] = {
    "slug": TEXTS,
    "row_count": COUNTS,
    "created_at": TIMES,
    "updated_at": TIMES,
    "status": TEXTS,
    "template": TEMPLATES,
    "metadata": written() | st.just("nul"),
}
USUAL = {
    "slug": '"i"',
    "row_count": "3",
    "created_at": '"2026-01-01T00:00:00Z"',
    "updated_at": '"2026-01-01T00:00:00.5+02:00"',
    "status": '"completed"',
}


@st.composite
def imports_as_text(draw: st.DrawFn) -> bytes:
    """Most members as usual, the others odd, absent, twice, or such as the interface does not name; bytes changed."""
    odd = {key: draw(MEMBERS[key]) for key in draw(st.lists(st.sampled_from(sorted(MEMBERS)), max_size=2))}
    rarely = draw(st.sampled_from(["", "", "", "", "unnamed", "twice", "without", "damaged"]))
    members = list(({**USUAL, **odd}).items())
    if rarely == "unnamed":
        members.append((draw(st.sampled_from(["x", "Slug", ""])), draw(written())))
    if rarely == "twice":
        members += [(key, draw(MEMBERS[key])) for key in [draw(st.sampled_from(sorted(MEMBERS)))]]
    members = draw(st.permutations(members))[rarely == "without" :]
    blank = draw(BLANK)
    text = "{" + f",{blank}".join(f'"{key}"{blank}:{value}' for key, value in members) + blank + "}"
    found = text.encode("utf-8", "surrogatepass")
    if rarely != "damaged":
        return found
    at = draw(st.integers(0, len(found)))
    return found[:at] + draw(st.sampled_from([b"", b"}", b"\xff", b"\0", b'"', b",", b"1"])) + found[at + 1 :]


@given(imports_as_text())
@settings(max_examples=1_000, deadline=None)
def test_an_import_is_the_same_however_it_is_read(text: bytes) -> None:
    """The way for those as the interface shows them takes nothing that the way for all others would take otherwise."""
    found = decode._read_import(text)
    with mock.patch.object(decode, "_usual_import", side_effect=ValueError):
        assert decode._read_import(text) == found


def test_an_import_as_the_interface_shows_it_is_read_the_short_way() -> None:
    with mock.patch.object(fields, "members_in", side_effect=AssertionError):
        found = decode_import(import_row("i", row_count=2, metadata={"a": 1.50}).encode())
    assert (found.slug, found.row_count, found.metadata_json) == ("i", 2, b'{"a": 1.5}')


@pytest.mark.parametrize("listing", [False, True])
@pytest.mark.parametrize(
    "beside", [b',"metadata":nuull', b',"more":01', b',"metadata":{"a":}', b',"metadata":{"\xff":1}']
)
@pytest.mark.parametrize("element", [b"", b'{"slug":7}', b"1x"])
def test_a_page_with_something_beside_its_data_that_is_not_json_is_none(
    listing: bool, beside: bytes, element: bytes
) -> None:
    body = b'{"data":[' + element + b"]" + beside + b"}"
    with pytest.raises(NotJson, match="beside its data"):
        (decode_import_page if listing else decode_record_page)(body)
