"""Privacy rules on JSON text: no value under a rule can be read, and every other one keeps its bytes."""

from __future__ import annotations

import hmac
import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.transform.privacy import Privacy, withheld
from connector.transform.protection import Protection, Unprotectable

KEY = "a key of the tests"


def protect(rules: dict[str, Any], text: str, *, slug: str = "customers", name: str = "Customers") -> str:
    """By the rules of `Customers`, or by those of several templates where `rules` are of rules."""
    nested = any(isinstance(each, dict) and key in ("*", "Customers", "customers") for key, each in rules.items())
    found = Privacy.parse(rules if nested else {"Customers": rules}, KEY).of_template(slug, name)
    return text if found is None else found.of(text.encode()).decode()


def hashed(said: str) -> str:
    return hmac.new(KEY.encode(), said.encode(), "sha256").hexdigest()


def test_rules_hold_for_rows_that_are_never_written_alike() -> None:
    found = Privacy.parse({"Customers": {"a": "drop", "c.d": "mask:1"}}, KEY).of_template("customers", "Customers")
    assert found is not None
    for n in range(1, 1_100):  # more than the attempts to learn how the members are written
        blank = " " * n
        text = found.of(f'{{"a":{blank}"x","b"{blank}:1,"c":{{"d":{blank}"xy"}}}}'.encode()).decode()
        assert json.loads(text) == {"b": 1, "c": {"d": "*y"}}


@pytest.mark.parametrize(
    ("rules", "text", "expected"),
    [
        ({"a": "drop"}, '{"a":1,"b":1.50}', '{"b":1.50}'),
        ({"a": "drop"}, '{ "a" : "x" , "b" : 1e400}', '{ "b" : 1e400}'),
        ({"b": "drop"}, '{"a":1,"b":"x"}', '{"a":1}'),
        ({"a": "drop", "b": "drop"}, '{"a":1,"b":"x","c":0}', '{"c":0}'),
        ({"a": "drop", "b": "drop"}, '{"a":1,"b":"x"}', "{}"),
        ({"a": "null"}, '{"a":"x","b":"\\u00e4"}', '{"a":null,"b":"\\u00e4"}'),
        ({"a": "mask:4"}, '{"a":"DE12345678"}', '{"a":"******5678"}'),
        ({"a": "mask:0"}, '{"a":"äöü"}', '{"a":"***"}'),
        ({"a": "mask:2"}, '{"a":12345}', '{"a":"***45"}'),
        ({"a": "mask:1"}, '{"a":null}', '{"a":null}'),
        ({"a": "hash"}, '{"a":"x"}', f'{{"a":"{hashed("x")}"}}'),
        ({"a": "hash"}, '{"a":"\\u0078"}', f'{{"a":"{hashed("x")}"}}'),
        ({"a": "hash"}, '{"a":1.50}', f'{{"a":"{hashed("1.50")}"}}'),
        ({"a": "hash"}, '{"a":{"b": 1}}', f'{{"a":"{hashed(chr(123) + chr(34) + "b" + chr(34) + ": 1}")}"}}'),
        ({"a": "drop"}, '{"a":{"b":[1,"]}"]},"c":{"a":2}}', '{"c":{"a":2}}'),
        ({"email": "drop"}, '{"em\\u0061il":"x","b":1}', '{"b":1}'),
        ({"a": "null"}, '{"a":"x","a":"y"}', '{"a":null,"a":null}'),
        ({"a": "null"}, '{"a":"x","b":[],"a":["y"]}', '{"a":null,"b":[],"a":null}'),
        ({"address.city": "drop"}, '{"address":{"city":"x","zip":01.0}}', None),
        ({"address.city": "drop"}, '{"address":{"city":"x","zip":1.0}}', '{"address":{"zip":1.0}}'),
        ({"address.city": "drop"}, '{"address.city":"x","b":1}', '{"b":1}'),
        ({"address": {"city": "drop"}}, '{"address":{"city":"x"}}', '{"address":{}}'),
        ({"a.*": "null"}, '{"a":{"b.c":"x"}}', '{"a":{"b.c":null}}'),
        ({"c.*.email": "drop"}, '{"c":[{"email":"x","n":1},2]}', '{"c":[{"n":1},2]}'),
        ({"c.0.email": "drop"}, '{"c":[{"n":1},{"email":"x"}]}', '{"c":[{"n":1},{}]}'),
        ({"c.*": "drop"}, '{"c":["x","y"]}', '{"c":[]}'),
        ({"re:(?i)phone|mobile": "null"}, '{"Home Phone":"x","m":{"mobile":"y"}}', None),
        ({"re:^c\\.\\d+\\.email$": "null"}, '{"c":[{"email":"x"}]}', '{"c":[{"email":null}]}'),
        ({"re:^c\\.1$": "null"}, '{"c":["x","y"],"d":["z"]}', '{"c":[null,null],"d":["z"]}'),
        ({"re:^c\\.[2-4]\\.e$": "drop"}, '{"c":[{"e":"x"},{"e":"y","f":1}]}', '{"c":[{},{"f":1}]}'),
        ({"re:^c\\.0\\.p\\.1\\.n$": "null"}, '{"c":[{"p":[{"n":"x"}]}]}', '{"c":[{"p":[{"n":null}]}]}'),
        ({"re:^c\\.0\\.p\\.\\*\\.n$": "null"}, '{"c":[{"p":[{"n":"x"}]}]}', '{"c":[{"p":[{"n":null}]}]}'),
        ({"re:(\\.\\d){5}$": "null"}, '{"c":[[[[["x"]]]]]}', '{"c":[[[[[null]]]]]}'),
        ({"allow": ["re:c\\.\\d\\.\\d", "re:d\\.0\\.0"]}, '{"c":[[1]],"d":[["x"]]}', '{"c":[[1]]}'),
        ({"allow": ["re:c\\.0"]}, '{"c":["x","y"]}', "{}"),
        ({"allow": ["re:c\\.[0-8]", "re:d\\.\\d+", "re:e\\..*"]}, '{"c":["x"],"d":[1],"e":[2]}', '{"d":[1],"e":[2]}'),
        ({"a": "mask:3", "re:.*": "drop"}, '{"a":"xyz12","b":"x"}', '{"a":"**z12"}'),
        ({"": "drop"}, '{"":"x","b":1}', '{"b":1}'),
        ({"*": {"a": "drop", "b": "null"}, "Customers": {"a": "mask:1"}}, '{"a":"xy","b":"x"}', '{"a":"*y","b":null}'),
        ({"*": {"a": "mask:0"}, "customers": {"re:a": "null"}}, '{"a":"xyz"}', '{"a":null}'),
        ({"allow": ["id", "address.city"]}, '{"id":7,"x":"x","address":{"city":"y","zip":1}}', None),
        ({"allow": ["c.*.n"]}, '{"c":[{"n":1,"m":"x"},"x"],"d":[{"n":"x"}]}', '{"c":[{"n":1}]}'),
        ({"allow": ["id", "a"], "a": "null"}, '{"id":1,"a":"x","b":"x"}', '{"id":1,"a":null}'),
        ({"*": {"allow": ["id"]}, "Customers": {"allow": ["b"]}}, '{"id":"x","b":1}', '{"b":1}'),
        ({"allow": ["address.city"]}, '{"address":"x"}', "{}"),
        ({"allow": "drop"}, '{"allow":"x","b":1}', '{"b":1}'),
        ({"allow": []}, '{"a":"x"}', "{}"),
        ({"a.pr\u00e9nom": "drop"}, '{"a":{"pre\u0301nom":"x","pr\u00e9nom":"x","n":1}}', '{"a":{"n":1}}'),
        ({"pre\u0301nom": "drop"}, '{"pre\u0301nom":"x","pr\\u00e9nom":"x","n":1}', '{"n":1}'),
        ({"re:^pr\u00e9nom$": "null"}, '{"pre\u0301nom":"x"}', '{"pre\u0301nom":null}'),
        ({"re:^pr..nom$": "null"}, '{"pre\u0301nom":"x"}', '{"pre\u0301nom":null}'),
        ({"allow": ["re:pr\u00e9nom"]}, '{"pre\u0301nom":1,"nom":"x"}', '{"pre\u0301nom":1}'),
        ({"allow": ["pr\u00e9nom"]}, '{"pre\u0301nom":1,"nom":"x"}', '{"pre\u0301nom":1}'),
    ],
)  # fmt: skip
def test_a_rule_does_what_it_says(rules: dict[str, Any], text: str, expected: str | None) -> None:
    if expected is None:  # the values that stay are numbers, those that go hold an x
        assert "x" not in protect(rules, text).replace("address", "").replace('"Home Phone"', "")
    else:
        assert protect(rules, text) == expected


def test_a_hash_is_the_same_in_every_template() -> None:
    rules = {"*": {"email": "hash"}, "Orders": {"buyer": "hash"}}
    first = protect(rules, '{"email":"a@b.c"}')
    assert json.loads(first)["email"] == json.loads(protect(rules, '{"buyer":"a@b.c"}', name="Orders"))["buyer"]


@pytest.mark.parametrize(
    ("given_rules", "named"),
    [
        ({"T": {"a": "masc:4"}}, "privacy.T is not valid: a:"),
        ({"T": {"a": 4}}, "privacy.T is not valid: a:"),
        ({"T": {"a": ["x"]}}, "privacy.T is not valid: a:"),
        ({"T": {"allow": ["a", 1]}}, "allow takes"),
        ({"T": {"re:(": "drop"}}, r"re:\("),
        ({"T": {"allow": ["re:("]}}, r"re:\("),
        ({"T": "drop"}, "privacy.T"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(given_rules: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Privacy.parse(given_rules, KEY)


@pytest.mark.parametrize("title", ["Metadata", " metadata", "METADATA", "metdata", "* ", "**"])
def test_a_reserved_title_that_is_misspelt_is_refused(title: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean (metadata|\*)\?"):
        Privacy.parse({title: {"email": "drop"}}, None)


@pytest.mark.parametrize("key", [None, ""])
def test_a_hash_without_a_key_is_refused(key: str | None) -> None:
    with pytest.raises(ValueError, match="privacy_key"):
        Privacy.parse({"metadata": {"a": "hash"}}, key)


@pytest.mark.parametrize(
    "text", ['{"a":{"b":}}', '{"a":[1,]}', '{"b":{}', '{"b":{},"' + "\\", '{"a":' * 200 + "1" + "}" * 200]
)
def test_what_cannot_be_taken_apart_is_refused(text: str) -> None:
    with pytest.raises(Unprotectable):
        protect({"re:z": "drop"}, text)


def test_the_fingerprint_follows_the_rules_that_concern_a_template_and_the_key() -> None:
    def of(rules: dict[str, Any], key: str = KEY, name: str | None = "T") -> str | None:
        return Privacy.parse(rules, key).fingerprint(None, name)

    assert of({}) is None
    assert of({"U": {"a": "drop"}}) is None
    assert of({"T": {}}) is None
    plain = of({"T": {"a": "drop"}})
    assert plain == of({"T": {"a": "drop"}, "U": {"b": "drop"}}, "other key")
    seen = [plain, of({"T": {"a": "null"}}), of({"T": {"allow": ["a"]}}), of({"*": {"a": "hash"}})]
    seen += [of({"*": {"a": "hash"}}, "other key"), of({"metadata": {"a": "drop"}}), of({"*": {"a": "mask:1"}})]
    assert len({*seen}) == len(seen)


def test_an_import_without_a_template_is_under_the_strictest_rule_of_all() -> None:
    sections: dict[str, Any] = {
        "T": {"a": "mask:1", "b": "hash"},
        "U": {"a": "drop"},
        "*": {"b": "mask:4", "c": "null"},
    }
    rules = Privacy.parse({**sections, "metadata": {"d": "drop"}}, KEY).of_template(None, None)
    assert rules is not None
    shown = json.loads(rules.of(b'{"a": "secret", "b": "secret", "c": "secret", "d": "stays"}'))
    assert (shown["c"], shown["d"], "a" in shown, len(shown["b"])) == (None, "stays", False, 64)
    allowing = Privacy.parse({"T": {"allow": ["a"]}, "U": {"allow": ["b"], "b": "null"}}, KEY).of_template(None, None)
    assert allowing is not None
    assert json.loads(allowing.of(b'{"a": 1, "b": 2, "c": 3}')) == {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("keys", "nested", "concerned"),
    [
        (("ssn",), False, True),
        (("at", "home"), False, True),
        (("at",), True, True),
        (("at",), False, False),
        (("at", "home", "street"), False, True),
        (("note",), True, False),
    ],
)
def test_a_rule_concerns_its_path_what_is_below_and_what_it_is_inside_of(
    keys: tuple[str, ...], nested: bool, concerned: bool
) -> None:
    rules = Privacy.parse({"*": {"ssn": "drop", "at.home": "null"}}, KEY).of_template("t", None)
    assert rules is not None
    assert rules.concerns(keys, nested=nested) is concerned
    only = Privacy.parse({"*": {"allow": ["note"]}}, KEY).of_template("t", None)
    assert only is not None
    assert only.concerns(keys, nested=False) is (keys != ("note",))


def test_withheld_payloads_stay_apart_and_say_nothing() -> None:
    assert withheld("a secret", b"k") != withheld("another", b"k")
    assert withheld("a secret", b"k") == withheld("a secret", b"k")
    assert "secret" not in withheld("a secret", b"k")


KEYS = st.sampled_from(["a", "b", "a.b", "c", "", "é", 'q"', "a\\", "{", ","])
SECRETS = st.sampled_from(["CANARY", 'CANARY"', "CANARY,{", "[CANARY", "CANARY\\", "\ud800CANARY"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | SECRETS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
PATHS = st.sampled_from(["a", "b", "a.b", "*", "a.*", "*.b", "c.*.a", "re:a", "re:^b$", "é", ""])
RULES = st.dictionaries(PATHS, st.sampled_from(["drop", "null", "mask:0", "hash"]), min_size=1, max_size=3)


GAPS = st.sampled_from([b"", b" ", b"\n\t"])


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """Return the text of an object whose members may be written in different ways, and whose keys may occur twice."""
    members = []
    for key, value in draw(st.lists(st.tuples(KEYS, JSON), max_size=5)):
        colon = draw(GAPS) + b":" + draw(GAPS)
        spelled = json.dumps(key, ensure_ascii=draw(st.booleans())).encode()
        members.append(draw(GAPS) + spelled + colon + json.dumps(value).encode() + draw(GAPS))
    return b"{" + b",".join(members) + b"}"


@given(RULES, st.lists(objects(), min_size=1, max_size=4), st.booleans())
def test_the_fast_way_and_the_slow_one_return_the_same_bytes(
    rules: dict[str, str], texts: list[bytes], allowing: bool
) -> None:
    given_rules = {"*": {**rules, "allow": ["a", "re:c.*"]} if allowing else rules}
    fast = Privacy.parse(given_rules, KEY).of_template("s", "n")
    assert fast is not None
    with mock.patch.object(Protection, "_object", return_value=None):
        slow = [protect(given_rules, text.decode()) for text in texts]
    assert [fast.of(text).decode() for text in texts] == slow


@given(
    RULES,
    st.booleans(),
    st.lists(st.dictionaries(KEYS, JSON, max_size=4), min_size=2, max_size=6),
    st.sampled_from([None, 1, "\t"]),
)
def test_what_was_learned_from_rows_changes_nothing_for_the_next(
    rules: dict[str, str], allowing: bool, rows: list[dict[str, Any]], indent: int | str | None
) -> None:
    """How an object is written is learned from the rows before it."""
    given_rules = {"*": {**rules, "allow": ["a", "re:c.*"]} if allowing else rules}
    learned = Privacy.parse(given_rules, KEY).of_template("s", "n")
    assert learned is not None
    for row in rows * 2:
        text = json.dumps(row, indent=indent)
        assert learned.of(text.encode()).decode() == protect(given_rules, text)


def test_a_pattern_changes_no_byte_of_what_it_does_not_match() -> None:
    nested = '{"a": { "b" : [1, "]" , null ] , "c":[ ],"e":{ },"f":[[1], {"g" : 2}]} , "h":1.50}'
    assert protect({"re:x$": "drop"}, nested) == nested
    assert protect({"re:x$": "drop"}, '{"a": { "b" : [1, "x" ],"c":{"x":7}}}') == '{"a": { "b" : [1, "x" ],"c":{}}}'
    assert protect({"re:b.0$": "null"}, '{"b":[1,"]"]}') == '{"b":[null,null]}'


@given(RULES, st.dictionaries(KEYS, JSON, max_size=4))
def test_no_rule_at_the_top_leaves_a_trace(rules: dict[str, str], row: dict[str, Any]) -> None:
    found = json.loads(protect(rules, json.dumps(row)))
    for path in rules:
        for key, value in found.items():
            if path in (key, "*") or (path in ("re:a",) and "a" in key):
                assert "CANARY" not in json.dumps(value)


@given(
    st.dictionaries(
        st.sampled_from(["*", "T", "U"]),
        st.dictionaries(
            st.sampled_from(["email", "*", "re:mail", "a.email", "a.*", "*.email"]),
            st.sampled_from(["drop", "null", "hash", "mask:0", "mask:3"]),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
    )
)
def test_an_unknown_template_shows_no_more_than_any_other(rules: dict[str, dict[str, str]]) -> None:
    privacy = Privacy.parse(rules, KEY)
    row = b'{"email":"xxxxxxxx","a":{"email":"xxxxxxxx"}}'

    def shown(*template: str | None) -> tuple[int, int]:
        protection = privacy.of_template(*template)
        found = json.loads(row if protection is None else protection.of(row))
        return str(found.get("email")).count("x"), str(found.get("a")).count("x")

    unknown = shown(None, None)
    for name in ("T", "U", "V"):
        assert all(less <= more for less, more in zip(unknown, shown(None, name), strict=True)), name


@pytest.mark.parametrize(
    ("section", "left"),
    [
        ({"metadata.by": "drop", "n": "null"}, {"n": None, "metadata": {}}),
        ({"metadata.by": "null", "by": "mask:1"}, {"by": "**n", "n": 1, "metadata": {"by": None}}),
        ({"allow": ["metadata.by"]}, {"metadata": {"by": 1}}),
        ({r"re:^metadata\.by$": "drop"}, {"n": 1, "metadata": {}}),
        ({"re:(?i)metadata.BY$|METADATA[.]n": "null"}, {"by": None, "n": None, "metadata": {"by": None}}),
        ({r"re:^(metadata|extra)\.by$": "drop"}, {"n": 1, "metadata": {}}),
        ({r"re:^[metadata.]+$": "null", "n": "drop"}, {"by": "ann", "metadata": None}),
        ({"re:metadata.*y": "null"}, {"by": None, "n": 1, "metadata": {"by": None}}),
    ],
)
def test_rules_for_metadata_take_paths_as_the_data_dictionary_shows_them(
    section: dict[str, Any], left: dict[str, Any]
) -> None:
    protection = Privacy.parse({"metadata": section}, None).of_metadata
    assert protection is not None
    assert json.loads(protection.of(b'{"by":"ann","n":1,"metadata":{"by":1}}')) == left
