"""Recognise the statements that change a dataset of tables in files, and take them apart."""

from __future__ import annotations

import re

from sqlglot import TokenType, tokenize

_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
STATEMENT = re.compile(
    r"\s*(?P<verb>INSERT\s+INTO|UPDATE|DELETE\s+FROM|TRUNCATE\s+TABLE|ALTER\s+TABLE|CREATE\s+TABLE(?:\s+IF\s+NOT\s+EXISTS)?|"
    rf"DROP\s+TABLE(?:\s+IF\s+EXISTS)?)\s+(?P<schema>{_NAME})\.(?P<table>{_NAME})(?!\s*\.)",
    re.IGNORECASE,
)
SCHEMA = re.compile(
    rf"\s*(?P<verb>CREATE|DROP)\s+SCHEMA(?:\s+IF(?:\s+NOT)?\s+EXISTS)?\s+(?P<schema>{_NAME})\s*(?P<all>CASCADE)?[\s;]*",
    re.IGNORECASE,
)
_CLAUSES = (TokenType.SET, TokenType.FROM, TokenType.USING, TokenType.WHERE)
ALTERED = {
    "add": rf"ADD\s+COLUMN\s+(?P<if>IF\s+NOT\s+EXISTS\s+)?(?P<column>{_NAME})\s+(?P<kind>.*?)(?:\s+NOT\s+NULL)?",
    "drop": rf"DROP\s+COLUMN\s+(?P<column>{_NAME})",
    "column": rf"RENAME\s+COLUMN\s+(?P<column>{_NAME})\s+TO\s+(?P<new>{_NAME})",
    "table": rf"RENAME\s+TO\s+(?P<new>{_NAME})",
    "type": rf"ALTER\s+COLUMN\s+(?P<column>{_NAME})\s+TYPE\s+(?P<kind>.+?)\s+USING\s+(?P<value>.+)",
}


def clauses_of(rest: str) -> tuple[str, str, str, int]:
    """Return the alias, the other tables, the condition, and the number of parameters before these two.

    `rest` is what follows the table of an UPDATE or DELETE.
    """
    clauses: dict[TokenType, tuple[int, int]] = {}
    depth, before, last = 0, 0, None
    for token in tokenize(rest, read="duckdb"):
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        before += kind is TokenType.PLACEHOLDER and clauses.keys() <= {TokenType.SET}
        if depth == 0 and kind in _CLAUSES and last is not TokenType.DISTINCT:
            clauses[kind] = (token.start, token.end + 1)
            if kind is TokenType.WHERE:
                break
        last = kind
    starts = [start for start, _ in clauses.values()]
    ends_at = [*starts, len(rest)][1:]
    parts = {
        kind: rest[begin:end].strip().rstrip(";")
        for (kind, (_, begin)), end in zip(clauses.items(), ends_at, strict=True)
    }
    alias = re.sub(r"^AS\s", "", rest[: starts[0] if starts else 0].strip(), flags=re.IGNORECASE).strip()
    source = parts.get(TokenType.FROM, parts.get(TokenType.USING, ""))
    return alias, source, parts.get(TokenType.WHERE, ""), before


def unquoted(name: str) -> str:
    """Return the name that an identifier stands for."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
