"""Correct how dlt writes the address of a PostgreSQL server."""

from __future__ import annotations

from dlt.common.configuration import configspec
from dlt.destinations.impl.postgres.configuration import PostgresCredentials


@configspec(init=False)
class Credentials(PostgresCredentials):
    """dlt's credentials, of which a user name or password may have blanks.

    SQLAlchemy (`URL.render_as_string`) leaves blanks in an address as they are, and the driver that loads refuses them,
    with the password in its message. In parameters it writes them as a plus, which PostgreSQL takes for one.
    """

    def to_native_representation(self) -> str:
        address, query, parameters = super().to_native_representation().partition("?")
        return address.replace(" ", "%20") + query + parameters.replace("+", "%20")


def corrected(credentials: PostgresCredentials) -> Credentials:
    """Return the same credentials as `Credentials`."""
    own: Credentials = object.__new__(Credentials)
    own.__dict__.update(credentials.copy().__dict__)
    return own
