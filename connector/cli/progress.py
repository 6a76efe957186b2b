"""Show the progress of a command: bars on a terminal, log lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from connector.cli.logs import start_logging, sum_up_retries
from connector.cli.output import Output

if TYPE_CHECKING:
    from connector.cli.bars import Bars


@contextmanager
def progress_of(output: Output, *, steps: bool = True, verb: str = "read", loads: bool = True) -> Iterator[Bars | None]:
    """Show bars on a terminal; elsewhere log, with `steps` one line for each step.

    `verb` says what is done to each import and row, `loads` whether they are also loaded.
    """
    if not output.live:
        start_logging(output, steps=steps)
        try:
            yield None
        finally:
            sum_up_retries()
        return
    from connector.cli.bars import bars  # rich takes 0.1 s to import, and a scheduler never sees it

    with bars(output, verb, loads) as shown:
        yield shown
