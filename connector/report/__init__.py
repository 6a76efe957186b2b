"""The warehouse on one page: facts read by SQL, then one HTML file that needs nothing beside itself.

gather(warehouse, now) → Facts → render(facts) → text → write(path, text)
"""

from connector.report.facts import Facts
from connector.report.gathering import gather
from connector.report.page import render
from connector.report.verdict import Verdict, judge
from connector.report.writing import write

__all__ = ["Facts", "Verdict", "gather", "judge", "render", "write"]
