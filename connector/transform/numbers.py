"""Convert JSON number literals to numbers, only if the number equals the literal exactly."""

import re
from decimal import Context, Decimal, Inexact, InvalidOperation

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# A literal this short without an exponent has at most 15 digits and a point, which a double keeps.
FEW_CHARACTERS = 16
_INT64_LENGTH = 20
# CPython refuses to read more than 4,300 digits as an int.
LONGEST_INT = 4000
MINUS_ZERO = "-0"  # the only whole number that an int cannot represent

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def is_number(text: str) -> bool:
    """Return whether the text is exactly a JSON number literal."""
    return _NUMBER.fullmatch(text) is not None


def is_whole(literal: str) -> bool:
    """Return whether a number literal has neither fraction nor exponent."""
    return "." not in literal and "e" not in literal and "E" not in literal


def int64(literal: str) -> int | None:
    """Return the whole literal as a 64-bit integer; None beyond 64 bits, and for `-0`, whose sign would be lost."""
    if len(literal) > _INT64_LENGTH or literal == MINUS_ZERO:
        return None
    number = int(literal)
    return number if INT64_MIN <= number <= INT64_MAX else None


def whole_double(number: int) -> float | None:
    """Return a whole number as the double that equals it; None if there is none, or beyond 64 bits."""
    if INT64_MIN <= number <= INT64_MAX and float(number) == number:
        return float(number)
    return None


def exact_double(literal: str) -> float | None:
    """Return a literal with fraction or exponent as a double; None if the double's shortest text is another number."""
    number = float(literal)
    if len(literal) <= FEW_CHARACTERS and "e" not in literal and "E" not in literal:
        return number
    try:
        same = Decimal(literal) == Decimal(repr(number))
    except InvalidOperation:  # an exponent beyond what even Decimal counts
        return None
    return number if same else None


def exact_decimal(literal: str, precision: int, scale: int) -> Decimal | None:
    """Return a literal as decimal(precision, scale); None if that does not hold the same number."""
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        return context.quantize(Decimal(literal), Decimal(1).scaleb(-scale))
    except (Inexact, InvalidOperation):
        return None
