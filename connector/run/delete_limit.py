"""Decide whether a run may delete the imports that are gone, by `mass_delete_limit`. Pure.

Invariant: until they are deleted, what runs load does not make the share of what is missing smaller. Otherwise what was
loaded from a wrong service would be enough for the next run to delete everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class DeleteLimit:
    """Whether a run may delete; `problem` says why not, unless its scope is the reason.

    `base` is the number of imports of which later runs take the share, and `base_after` what it is once the run has
    deleted. It is None if the service has as many of the known imports as it must have, whichever run it is. One that
    an earlier run noted stays until the imports are deleted.
    """

    allows: bool
    base: int | None
    base_after: int | None
    problem: str | None = None


def check_delete_limit(
    limit: float,
    *,
    known: int,
    gone: int,
    unseen: int,
    interrupted: int = 0,
    noted: int | None = None,
    deletes: bool = True,
    waived: bool = False,
) -> DeleteLimit:
    """Compare the number of imports that are `gone` with that of the `known` ones.

    `unseen` of the known ones were neither listed nor found by a request. All of these are without the `interrupted`,
    which are gone too: another run began to delete them. `noted` is the base that an earlier run noted, `deletes` is
    false for a run of a scope that deletes nothing, and `waived` says that the limit does not apply.
    """
    base = known if noted is None else min(known, noted)
    to_note = base if too_many_vanished(unseen, base, limit) else None
    if not deletes:
        return DeleteLimit(False, to_note, to_note)
    waived = waived or limit == 1
    if waived or not too_many_vanished(gone, base, limit):
        after = None if waived or to_note is None else max(base - gone, 0) or None
        return DeleteLimit(True, base if to_note or (noted and gone + interrupted) else None, after)
    share = f"{gone} of {base} known imports vanished, more than mass_delete_limit = {limit:g} allows"
    if noted is not None:
        share = (
            f"{gone} imports vanished, more than mass_delete_limit = {limit:g} allows of the {base} that were "
            "known when a run first did not see some of them"
        )
    problem = f"{share}; nothing was deleted. If that is right, run once with --allow-mass-delete."
    return DeleteLimit(False, to_note, to_note, problem)


def too_many_vanished(vanished: int, known: int, limit: float) -> bool:
    """Return whether deleting `vanished` of `known` imports would exceed `mass_delete_limit`."""
    # as a decimal, as it was written: with floats, 0.29 * 100 is less than 29
    return vanished > 0 and vanished > Fraction(str(limit)) * known
