"""The page in a real Chromium: offline, in both color schemes, on a phone, by keyboard, and printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from connector.reporting.html import Facts, render, write
from connector.reporting.html.facts import Capped, FieldProfile, Run, Template, Upload, ValueProfile
from tests.reporting.html.conftest import ENDS_SCRIPTS, LONG, NOW, Troubled, facts_of
from tests.types.conftest import DuckDB

Open = Callable[..., Any]
UPLOADS = tuple(Upload(NOW.date() - timedelta(days=n), "t", 1, 4) for n in range(2))


@pytest.fixture(scope="session")
def page_file(troubled_template: tuple[Path, str, Troubled], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, dataset, _ = troubled_template
    place = DuckDB(folder)
    place.dataset = dataset
    file = tmp_path_factory.mktemp("page") / "report.html"
    write(file, render(facts_of(place)))
    return file


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Open]:
    """Opens it; at the end of the test nothing may have been asked for, and nothing complained of."""
    contexts, asked, complaints, wanted = [], [], [], set()

    def opened(file: Path = page_file, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        wanted.add(file.as_uri())
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert {url for url in asked if not url.startswith("data:")} == wanted
    assert complaints == []


def drawn(page: Any) -> Any:
    charts = page.locator(".chart svg[role=img]")
    expect(charts).to_have_count(4)
    return charts


@pytest.mark.parametrize(("scheme", "bright"), [("light", True), ("dark", False)])
def test_charts_are_drawn_and_say_what_they_show(open_page: Open, scheme: str, bright: bool) -> None:
    page = open_page(scheme=scheme)
    labels = [chart.get_attribute("aria-label") for chart in drawn(page).all()]
    assert [label.split(".")[0] for label in labels] == [
        "Duration of each run",
        "Records loaded by each run",
        "Records per day and template",
        "Records in all, by day of upload",
    ]
    assert "2 runs: 1 succeeded, 1 partial" in labels[0]
    assert "in all; the most" in labels[2]
    assert page.locator("[data-chart=rows] rect, [data-chart=rows] [aria-label=rect] path").count() > 3
    assert page.locator("[data-chart=duration] [aria-label=dot] path").count() == 2
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is bright
    fill = page.evaluate("getComputedStyle(document.querySelector('[data-chart=rows] [aria-label=rect] rect')).fill")
    assert fill.startswith("rgb(")


def test_what_the_data_says_is_shown_and_never_done(open_page: Open) -> None:
    page = open_page()
    drawn(page)
    assert page.title().startswith("Not everything is loaded and reconciled.")
    assert page.locator("img").count() == 0
    assert page.locator("#fields ~ * bdi", has_text=ENDS_SCRIPTS[:60]).count() > 0
    titles = {each.get_attribute("title") for each in page.locator("bdi[title]").all()}
    assert titles == {LONG, ENDS_SCRIPTS}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_column_is_out_of_sight(open_page: Open, width: int, scheme: str) -> None:
    page = open_page(width=width, scheme=scheme)
    drawn(page)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = (
        "[...document.querySelectorAll('.scroll, .card')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id)"
    )
    assert page.evaluate(hidden) == []
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map((e) => e.clientWidth))") <= width


def test_charts_follow_the_width_of_the_window(open_page: Open) -> None:
    page = open_page()
    before = drawn(page).first.get_attribute("width")
    page.set_viewport_size({"width": 400, "height": 800})
    expect(drawn(page).first).not_to_have_attribute("width", before)
    drawn(page)


def test_the_keyboard_alone_is_enough(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('table[data-what=fields] thead') !== null"):
            break
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    head = page.locator("table[data-what=fields] thead th").first
    assert page.evaluate("document.activeElement.textContent") == "Template"
    names = [page.locator("table[data-what=fields] tbody td:first-child").all_text_contents()]
    for _ in range(2):
        page.keyboard.press("Enter")
        names.append(page.locator("table[data-what=fields] tbody td:first-child").all_text_contents())
    assert head.get_attribute("aria-sort") == "descending"
    assert names[1] == names[2][::-1] or (names[1][0], names[2][0]) == (names[2][-1], names[1][-1])
    assert sorted(names[1]) == sorted(names[2]) == sorted(names[0])
    assert page.evaluate("document.activeElement.textContent") == "Template"


def test_numbers_sort_as_numbers_largest_first(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Null").click()
    cells = page.locator("table[data-what=fields] tbody td:nth-child(6)").all_text_contents()
    shares = [-1.0 if cell == "–" else float(cell.removesuffix(" %")) for cell in cells]
    assert shares == sorted(shares, reverse=True)
    assert len({share for share in shares if 0 < share < 100}) > 3


def test_a_long_table_says_that_there_is_more(open_page: Open, page_file: Path) -> None:
    file = page_file.with_name("fields.html")
    look = ValueProfile("1", "9", (3, 0, 1))
    fields = tuple(FieldProfile("t", "records_t", f"f{n}", f"f{n}", "bigint", 4, 0, 0, NOW, look) for n in range(60))
    write(file, render(Facts("w", "d", NOW, "1", synced=True, fields=Capped(fields, 60), typed=True, uploads=UPLOADS)))
    page = open_page(file)
    rows = page.locator("table[data-what=fields] tbody tr")
    assert sum(row.is_visible() for row in rows.all()) == 25
    page.get_by_label("Search fields").fill("f59")
    assert [row.is_visible() for row in rows.all()].index(True) == 59
    page.get_by_label("Search fields").fill("")
    page.get_by_role("button", name="Show all 60 fields").click()
    assert all(row.is_visible() for row in rows.all())
    assert page.locator(".spark rect").count() == 2 * 60
    page.emulate_media(media="print")
    assert all(row.is_visible() for row in rows.all())


def test_search_hides_what_does_not_match(open_page: Open) -> None:
    page = open_page()
    rows = page.locator("table[data-what=fields] tbody tr")
    total = rows.count()
    page.get_by_label("Search fields").fill("REJECTS ok")
    assert [row.locator("th").text_content() for row in rows.all() if row.is_visible()] == ["ok"]
    assert page.locator("output").last.text_content() == f"1 of {total}"
    page.get_by_label("Search fields").fill("")
    assert rows.first.is_visible()


def test_the_page_is_what_assistive_technology_needs(open_page: Open) -> None:
    page = open_page()
    drawn(page)
    faults = page.evaluate(
        """() => {
          const found = [], all = (css) => [...document.querySelectorAll(css)];
          const ids = all("[id]").map((e) => e.id);
          if (new Set(ids).size !== ids.length) found.push("an id is there twice");
          for (const e of all("[aria-labelledby]"))
            if (!document.getElementById(e.getAttribute("aria-labelledby"))?.textContent.trim()) found.push("label");
          for (const e of all("table")) if (!e.caption?.textContent.trim()) found.push("no caption");
          for (const e of all("thead th")) if (e.scope !== "col") found.push("no scope");
          for (const e of all("tbody tr")) if (!e.querySelector("th[scope=row]")) found.push("no head of row");
          for (const e of all("input")) if (!e.labels.length) found.push("no label of input");
          for (const e of all("button, summary, a")) if (!e.textContent.trim()) found.push("no name");
          for (const e of all("svg:not([aria-hidden=true])")) if (!e.getAttribute("aria-label")) found.push("svg");
          for (const e of all(".scroll")) if (e.tabIndex || e.getAttribute("role") !== "region") found.push("scroll");
          for (const e of all("nav a, .skip")) if (!document.querySelector(e.hash)) found.push("dead link");
          const levels = all("main h2, main h3").map((e) => +e.tagName[1]);
          if (levels.some((level, n) => level - (n ? levels[n - 1] : 1) > 1)) found.push("level");
          if (all("h1").length !== 1 || document.documentElement.lang !== "en") found.push("h1 or lang");
          return found;
        }"""
    )
    assert faults == []
    assert page.locator("figure").count() == page.locator("figure figcaption").count() == 4


def test_the_policy_holds(browser: Any, page_file: Path) -> None:
    """What got in all the same could neither run nor speak to anyone; here the network is on."""
    page = browser.new_page()
    page.goto(page_file.as_uri())
    refused = page.evaluate(
        """async () => {
          const refused = [];
          document.addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
          const script = Object.assign(document.createElement("script"), { textContent: "window.ran = true" });
          const image = Object.assign(new Image(), { src: "http://127.0.0.1:9/x.png" });
          document.body.append(script, image);
          await fetch("http://127.0.0.1:9/").catch(() => null);
          await new Promise((done) => setTimeout(done, 100));
          return [...refused.map((d) => d.replace("-elem", "")).sort(), window.ran ?? "did not run"];
        }"""
    )
    page.close()
    assert refused == ["connect-src", "img-src", "script-src", "did not run"]


def test_printed_it_is_light_and_whole(open_page: Open) -> None:
    page = open_page(scheme="dark")
    drawn(page)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert page.locator("nav").is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_one_run_and_one_day_are_no_chart(open_page: Open, page_file: Path) -> None:
    file = page_file.with_name("one.html")
    run = Run("r", "succeeded", "incremental", NOW, NOW, 0.0, 0, 0, 0, 0, 0, 1, 0, None)
    upload = Upload(NOW.date(), "empty", 1, 0)
    write(file, render(Facts("w", "d", NOW, "1", synced=True, runs=Capped((run,), 1), uploads=(upload,))))
    page = open_page(file)
    assert page.locator(".chart").count() == 0
    assert page.get_by_text("1 run: 1 succeeded").is_visible()


def test_runs_and_days_without_a_record_lie_on_the_axis(open_page: Open, page_file: Path) -> None:
    file = page_file.with_name("zeros.html")
    day = timedelta(days=1)
    runs = [Run("r", "succeeded", "incremental", NOW - n * day, NOW, 0.0, 0, 0, 0, 0, 0, 1, 0, None) for n in range(3)]
    uploads = tuple(Upload((NOW - n * day).date(), "empty", 1, 0) for n in range(3))
    template = Template("t", "empty", 3, 0, 0, 0, {}, NOW, NOW)
    facts = Facts(
        "w", "d", NOW, "1", True, templates=Capped((template,), 1), runs=Capped(tuple(runs), 3), uploads=uploads
    )
    write(file, render(facts))
    page = open_page(file)
    expect(page.locator(".chart svg[role=img]")).to_have_count(5)
    for chart in ("duration", "loaded", "rows", "growth", "fresh"):
        zero = page.locator(f"[data-chart={chart}] [aria-label='y-axis tick label'] text").first
        assert zero.text_content() == "0"
        chart_box, zero_box = page.locator(f"[data-chart={chart}] svg[role=img]").bounding_box(), zero.bounding_box()
        assert zero_box["y"] > chart_box["y"] + chart_box["height"] / 2
    assert 0 < page.locator("[aria-label=rect] rect").last.bounding_box()["width"] < 100
    lengths = page.locator("[data-chart=fresh] [aria-label='y-axis tick label'] text").all_text_contents()
    assert lengths == ["0", "6 h", "12 h", "18 h", "24 h"]
    times = page.locator("[data-chart=fresh] [aria-label='x-axis tick label'] text").all_text_contents()
    assert not any("M" in time.replace("Mar", "").replace("May", "") for time in times), "no AM, no PM"


def test_a_page_of_nothing(open_page: Open, page_file: Path) -> None:
    file = page_file.with_name("nothing.html")
    write(file, render(Facts("a warehouse", "importer_data", NOW, "1")))
    page = open_page(file, width=360)
    assert page.locator("h1").text_content() == "○Nothing has been loaded yet."
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
