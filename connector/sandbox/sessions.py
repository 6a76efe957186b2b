"""Issue and check importer session tokens: JWTs signed by pyjwt."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import jwt

ISSUER = "importer-sandbox"
ALGORITHM = "HS256"
LIFETIME_S = 3600


def session_token(key: str, importer_slug: str, metadata: Mapping[str, Any], now: datetime) -> str:
    claims = {
        "iss": ISSUER,
        "importer_slug": importer_slug,
        "metadata": dict(metadata),
        "iat": now,
        "exp": now + timedelta(seconds=LIFETIME_S),
    }
    return jwt.encode(claims, key, algorithm=ALGORITHM)


def session_claims(key: str, token: str) -> dict[str, Any]:
    """Return the claims of a token of this service. Raises `jwt.PyJWTError` for any other."""
    return jwt.decode(token, key, algorithms=[ALGORITHM], issuer=ISSUER)
