"""The text of the page: nothing of the data is markup, nothing may be fetched, and the file is written whole."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from datetime import date, timedelta
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from connector.errors import ConnectorError
from connector.reporting.html import Facts, render, write
from connector.reporting.html.charts import MOST_BARS, NAMED_TEMPLATES, REST, upload_chart
from connector.reporting.html.facts import Capped, OpenImport, Run, Template, Upload
from connector.reporting.html.wording import advice, distinct_labels, share, visible
from connector.standing import Standing
from tests.reporting.html.conftest import ENDS_SCRIPTS, LONG, NOW, TURNED

CSS = (files("connector.reporting.html") / "assets" / "style.css").read_text(encoding="utf-8")
TEXT_COLORS = ("ink", "faint", "link", "good", "warn", "bad", "calm", "busy")
CHART_COLORS = tuple(f"c{n}" for n in range(1, NAMED_TEMPLATES + 2))


class Elements(HTMLParser):
    """Tags with their attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)

    def having(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def facts(name: str = "customers") -> Facts:
    run = Run(name, name, name, NOW, NOW, 1.5, 1, 1, 0, 2, 0, 3, 0, name)
    template = Template(name, name, 1, 2, 2, 0, {Standing.failed: 1}, NOW, NOW)
    return Facts(
        name,
        name,
        NOW,
        "1.2.3",
        synced=True,
        templates=Capped((template,), 1),
        standings={Standing.failed: 1},
        runs=Capped((run,), 1),
        uploads=(Upload(NOW.date(), name, 1, 2),),
        open_imports=Capped((OpenImport(name, name, Standing.failed, 2, 0, 1, name, None),), 1),
    )


@pytest.mark.parametrize("name", [ENDS_SCRIPTS, "{{ 7*7 }}", "<!--<script>", "]]>", "\u2028'\"`\x00\ud800", TURNED])
def test_no_text_of_the_data_is_markup(name: str) -> None:
    plain, hostile = Elements(render(facts())), Elements(render(facts(name)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert json.loads(hostile.scripts[0])["runs"][0][2] == name
    assert "49" not in "".join(hostile.scripts[:1]) or "49" in name


def test_only_the_scripts_put_in_may_run_and_nothing_may_be_fetched() -> None:
    elements = Elements(render(facts(ENDS_SCRIPTS)))
    [policy] = [m["content"] or "" for m in elements.having("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in elements.scripts[1:]}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert len(hashes) == 3
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in directives["script-src"]
    for _, attributes in elements.tags:
        assert not {"src", "srcset", "action", "onload", "onerror", "onclick"} & set(attributes)
        assert (attributes.get("href") or "#")[:5] in ("#main", "data:") or (attributes.get("href") or "#")[0] == "#"
    assert "url(" not in CSS
    assert "@import" not in CSS


def test_what_changes_the_look_of_its_neighbours_is_shown_by_number() -> None:
    assert visible(TURNED) == "invoice ⟨U+202E⟩txt.exe"
    assert visible("👩\u200d🔬 a\nb") == "👩\u200d🔬 a\nb"
    page = render(facts(TURNED))
    to_copy = f"<code>importer-sync backfill --import &#39;{TURNED}&#39;</code>"
    assert to_copy in page
    assert "\u202e" not in re.sub(r"<script.*?</script>", "", page.replace(to_copy, ""), flags=re.DOTALL)


def test_labels_of_charts_are_short_and_distinct() -> None:
    labels = distinct_labels([LONG, LONG + "b", "  ", REST], taken=REST)
    assert len(set(labels.values()) | {REST}) == 5
    assert max(len(label) for label in labels.values()) <= 42


@pytest.mark.parametrize(("days", "unit"), [(1, "day"), (120, "day"), (121, "week"), (900, "month"), (4000, "year")])
def test_charts_have_a_bounded_number_of_bars(days: int, unit: str) -> None:
    begin = date(2012, 2, 29)
    uploads = [Upload(begin + timedelta(days=n), f"t{n % 50}", 1, n % 50) for n in range(days)]
    chart = upload_chart(uploads)
    assert chart.unit == unit
    assert len(chart.periods) <= MOST_BARS + 1
    assert len(chart.templates) <= NAMED_TEMPLATES + 1 == len(CHART_COLORS)
    assert sum(bar.imports for bar in chart.bars) == days
    assert sum(bar.rows for bar in chart.bars) == sum(upload.rows for upload in uploads)


def test_shares_neither_vanish_nor_overstate() -> None:
    assert [share(s) for s in (None, 0.0, 1e-6, 0.125, 0.5, 0.99999, 1.0)] == [
        "–",
        "0 %",
        "<0.1 %",
        "12.5 %",
        "50 %",
        ">99.9 %",
        "100 %",
    ]


def test_a_command_that_is_advised_can_be_pasted() -> None:
    found = OpenImport("a b; rm -rf $HOME", "t", Standing.failed, 1, 0, 1, None, None)
    assert advice(found)[1] == "importer-sync backfill --import 'a b; rm -rf $HOME'"


def test_a_page_of_nothing_has_no_scripts() -> None:
    page = render(replace(facts(), synced=False, runs=Capped(), uploads=()))
    assert "<script" not in page
    assert "script-src 'none'" in unescape(page)
    assert "importer-sync run" in page


def test_runs_of_which_none_succeeded_are_not_called_none() -> None:
    page = render(facts())
    assert "none has succeeded so far" in page
    assert "no run so far" not in page
    assert "no run so far" in render(replace(facts(), runs=Capped()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_are_told_apart_from_what_they_lie_on(scheme: str) -> None:
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in CSS.split("prefers-color-scheme: dark"))
    colors = light if scheme == "light" else dark
    assert set(colors) >= {*TEXT_COLORS, *CHART_COLORS, "paper", "band"}
    for ground in ("paper", "band"):
        for name in TEXT_COLORS:
            assert contrast(colors[name], colors[ground]) >= 4.5, (scheme, name, ground)
    for name in CHART_COLORS:
        assert contrast(colors[name], colors["paper"]) >= 3, (scheme, name)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_page_that_cannot_be_finished_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    file.write_text("<!doctype html>the last one")
    file.chmod(0o640)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConnectorError, match="No space left on device"):
            write(file, "half")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "<!doctype html>the last one"
    assert write(file, "whole \ud800") == 7
    assert file.read_bytes() == b"whole ?"
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("where", ["missing/report.html", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(ConnectorError, match="name another file with --out"):
        write(tmp_path / where, "page")
    assert not list(tmp_path.iterdir())
