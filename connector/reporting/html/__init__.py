"""Report on the warehouse in one page: facts read by SQL, then one self-contained HTML file.

gather(warehouse, now) → Facts → render(facts) → text → write(path, text)
"""

from connector.reporting.html.facts import Facts
from connector.reporting.html.gathering import gather
from connector.reporting.html.page import render
from connector.reporting.html.verdict import Verdict, judge
from connector.reporting.html.writing import write

__all__ = ["Facts", "Verdict", "gather", "judge", "render", "write"]
