"""The warehouse on one page: facts read by SQL, then one HTML file that needs nothing beside itself.

gather(warehouse, now) → Facts → render(facts) → text
"""

from connector.reporting.html.facts import Facts
from connector.reporting.html.gathering import gather
from connector.reporting.html.page import render
from connector.reporting.html.verdict import Verdict, judge

__all__ = ["Facts", "Verdict", "gather", "judge", "render"]
