"""People's own files: every cell as the file has it."""

from __future__ import annotations

import csv
import io
import json
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from connector.sandbox import FileError, Service


def served_rows(service, slugs):
    return [record["data"] for slug in slugs for record in service.records(slug)]


def serve_text(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    service = Service()
    return service, service.add_file(path, **options)


def packaged(name: str) -> Path:
    spec = find_spec("vega_datasets")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "_data" / name


def test_a_public_json_file_cell_by_cell(read_all):
    path = packaged("cars.json")
    rows = json.loads(path.read_text(encoding="utf-8"))
    service = Service()
    slugs = service.add_file(path, rows_per_import=150)
    assert [shown["row_count"] for shown in service.imports()] == [150, 150, 106]
    assert {shown["template"]["name"] for shown in service.imports()} == {"cars"}
    assert [shown["metadata"]["part"] for shown in service.imports()] == [1, 2, 3]
    assert {type(row["Horsepower"]) for row in rows} == {int, type(None)}
    shown = [record["data"] for slug in slugs for record in read_all(service, f"/imports/{slug}/records", per_page=100)]
    assert shown == rows


def test_a_public_csv_file_cell_by_cell():
    path = packaged("airports.csv")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    service = Service()
    slugs = service.add_file(path, rows_per_import=1000, name="places")
    assert len(slugs) == -(-len(rows) // 1000)
    assert served_rows(service, slugs) == rows
    assert "places" in service.importers


def test_a_generated_csv_with_everything_quoting_allows(tmp_path):
    dice = Random(8)
    cells = [
        "",
        " ",
        "a,b",
        'say "hi"',
        "two\nlines",
        "crlf\r\ninside",
        "ünï",
        "0.10",
        "007",
        "NULL",
        "\u2028",
        "👕",
        "x\x0by",
    ]
    header = ["id", "Größe (cm)", "E-mail ", "", "Total", "total"]
    rows = [[str(place), *(dice.choice(cells) for _ in header[1:])] for place in range(500)]
    for terminator in ("\n", "\r\n"):
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator=terminator).writerows([header, *rows])
        service, slugs = serve_text(tmp_path, "my own.csv", text.getvalue(), rows_per_import=77)
        assert served_rows(service, slugs) == [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a,b\n1,2", [{"a": "1", "b": "2"}]),
        ("a;b\n1,5;2\n", [{"a": "1,5", "b": "2"}]),
        ("a\tb\n1\t\n", [{"a": "1", "b": ""}]),
        ("\ufeffa,b\n\n1,2\n\n\n3,4\n\n", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        (
            "a,b,c\n1\n1,2,3,4,5\n",
            [{"a": "1", "b": None, "c": None}, {"a": "1", "b": "2", "c": "3", "column 4": "4", "column 5": "5"}],
        ),
        ("a,a,A,\n1,2,3,4\n", [{"a": "1", "a (2)": "2", "A": "3", "": "4"}]),
        ("Größe\nklein\n".encode("cp1252"), [{"Größe": "klein"}]),
        ("a,a (2),a\n1,2,3\n", [{"a": "1", "a (2)": "2", "a (3)": "3"}]),
        ("column 2\n1,2\n", [{"column 2": "1", "column 2 (2)": "2"}]),
        ("Größe\t山\nklein\t1\n".encode("utf-16"), [{"Größe": "klein", "山": "1"}]),
        ("only,header\n", []),
        ("", []),
    ],
)
def test_csv_as_people_save_it(tmp_path, content, rows):
    service, slugs = serve_text(tmp_path, "f.csv", content)
    assert served_rows(service, slugs) == rows
    assert service.imports()[0]["row_count"] == len(rows)


EXACT = (
    '{"n": 0.10, "big": 123456789012345678901234567890, "tiny": 1e-300}',
    '{"n": 1.0E+2, "n": "\\ud800", "x": [ ]}',
    "{}",
    f'{{"long": {"9" * 5000}}}',
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("f.json", "[\n  " + ",\n  ".join(EXACT) + "\n]\n"),
        ("f.json", "[" + ",".join(EXACT) + "]"),
        ("f.jsonl", "\n".join(EXACT)),
        ("f.ndjson", "\ufeff" + "\r\n\r\n".join(EXACT) + "\n\n"),
        ("f.json", "\n".join(EXACT)),
    ],
)
def test_json_rows_keep_every_character(tmp_path, name, content):
    service, slugs = serve_text(tmp_path, name, content)
    texts = list(service.record_texts(slugs[0]))
    assert len(texts) == len(EXACT)
    for text, row in zip(texts, EXACT, strict=True):
        assert f'"data":{row},' in text


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("f.json", "[1, 2]", "row 1 is not a JSON object"),
        ("f.json", '[{"a": 1}, {"a": NaN}]', "row 2: NaN is not JSON"),
        ("f.json", '[{"a": 1}', "row 2"),
        ("f.jsonl", '{"a": 1}\n{"a": \n', "row 2"),
        ("f.xlsx", "", ".csv"),
        ("f.csv", b"a,b\n\x81\x8d", "neither UTF-8"),
    ],
)
def test_files_that_cannot_be_served(tmp_path, name, content, complaint):
    with pytest.raises(FileError, match=complaint) as caught:
        serve_text(tmp_path, name, content)
    assert name in str(caught.value)


def test_rows_of_a_file_can_be_edited(tmp_path):
    service, [slug] = serve_text(tmp_path, "f.csv", "a\n1\n2\n3\n")
    first, second, third = service.record_slugs(slug)
    service.edit_row(slug, second, {"a": "two"})
    service.delete_row(slug, first)
    service.append_rows(slug, [{"a": "4"}])
    assert served_rows(service, [slug]) == [{"a": "two"}, {"a": "3"}, {"a": "4"}]
    assert third in service.record_slugs(slug)
