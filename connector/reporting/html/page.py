"""Render the Facts as one HTML file: a template that escapes everything, scripts and style inline, no network."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from connector.reporting.html import wording
from connector.reporting.html.charts import fresh_summary, payload, run_summary, upload_chart
from connector.reporting.html.facts import DAYS_OF_CHANGES, Facts
from connector.reporting.html.verdict import judge
from connector.standing import Standing

LIBRARIES = ("d3-7.9.0.min.js", "plot-0.6.17.umd.min.js")
LICENSES = ("d3-7.9.0.LICENSE", "plot-0.6.17.LICENSE")
FILTERS = ("number", "amount", "share", "moment", "duration", "advice", "commands", "visible")
RUNS_LISTED = 50
PERIODS_LISTED = 120


def render(facts: Facts) -> str:
    uploads = upload_chart(facts.uploads)
    charted = [run for run in facts.runs.rows if run.started_at is not None][::-1]
    drawn = payload(charted, uploads)
    scripts = [_asset("vendor", name) for name in LIBRARIES] + [_asset("assets", "page.js")] if drawn else []
    return (
        _environment(facts)
        .get_template("report.html.j2")
        .render(
            facts=facts,
            verdict=judge(facts),
            uploads=uploads,
            periods=uploads.periods[: -PERIODS_LISTED - 1 : -1],
            run_summary=run_summary(charted),
            fresh_summary=fresh_summary(charted),
            runs_listed=facts.runs.rows[:RUNS_LISTED],
            drawn=drawn,
            policy=_policy(scripts),
            scripts=[Markup(script) for script in scripts],  # noqa: S704 our own files
            style=Markup(_asset("assets", "style.css")),  # noqa: S704
            licenses=[(name.removesuffix(".LICENSE"), _asset("vendor", name)) for name in LICENSES],
            standings=[(s, wording.STANDING_WORDS[s], facts.standings.get(s, 0)) for s in reversed(Standing)],
        )
    )


def _environment(facts: Facts) -> Environment:
    environment = Environment(
        loader=PackageLoader("connector.reporting.html", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(wording, name) for name in FILTERS}
    environment.filters["age"] = partial(wording.age, now=facts.made_at)
    environment.globals["standing_word"] = wording.STANDING_WORDS
    environment.globals["days_of_changes"] = DAYS_OF_CHANGES
    return environment


def _policy(scripts: list[str]) -> str:
    """Return the content security policy: nothing may be fetched, sent or framed, and only these scripts run."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(folder: str, name: str) -> str:
    """Return the text of a script or style sheet between its tags, with line ends as browsers normalize them."""
    return (files("connector.reporting.html") / folder / name).read_text(encoding="utf-8")
