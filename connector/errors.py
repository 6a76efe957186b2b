"""The exception tree: the class says what to do next, the message says it in one sentence.

::

    ConnectorError
    ├── ConfigError        fix the configuration or the command line (exit code 2)
    ├── AuthError          replace the token or ask for access (401, 403)
    ├── NotFoundError      the object is gone or never existed (404, 410)
    ├── TransientError     try again later: time-outs, 429, 5xx, cut connections
    ├── ContractError      the reply does not match the interface: check the service
    ├── DatabaseBusyError  end the process that has the file open or a table locked, or wait
    └── LockedError        another run of this pipeline is under way (exit code 4)

Messages have endpoint, status and page if there are any, and never a token.
"""

from __future__ import annotations

from functools import partial
from typing import Any


class ConnectorError(Exception):
    """Base of everything this package raises on purpose; `str()` is one sentence for the operator.

    `endpoint`, `status`, `page` and `per_page` say where it happened, when a request was involved.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        status: int | None = None,
        page: int | None = None,
        per_page: int | None = None,
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.status = status
        self.page = page
        self.per_page = per_page

    def __reduce__(self) -> tuple[Any, ...]:
        # dlt pickles exceptions into its trace; the default loses keyword-only arguments
        place: dict[str, Any] = {
            "endpoint": self.endpoint,
            "status": self.status,
            "page": self.page,
            "per_page": self.per_page,
        }
        return partial(type(self), **place), (str(self),)


class ConfigError(ConnectorError):
    """The configuration or the command line is wrong; nothing was tried."""


class MissingSettingError(ConfigError):
    """A required setting is missing: the source is not configured."""


class AuthError(ConnectorError):
    """The service refused the token: 401 (not valid) or 403 (not allowed)."""


class NotFoundError(ConnectorError):
    """The service answered 404, or 410, which means the same permanently."""


class TransientError(ConnectorError):
    """A time-out, 429, 5xx or cut connection that persisted until the retry budget was used up."""


class ContractError(ConnectorError):
    """A reply that does not match the interface, e.g. HTML with status 200."""


class TooLargeError(ContractError):
    """A reply that exceeds the size limit; a shorter page may be smaller."""


def means_no_such_page(error: ConnectorError, page: int) -> bool:
    """Return whether `error` may mean that the service has no page `page`, counted from 1.

    That is any 4xx, except for those about the token (401, 403), timing (408, 425, 429) or length (413). Page 1 always
    exists. A caller that treats such a page as empty still has to prove that it is behind the last row, because the
    service may have refused it for another reason.
    """
    refused = isinstance(error, ContractError) and (error.status or 0) // 100 == 4
    final = isinstance(error, NotFoundError) or (refused and not isinstance(error, TooLargeError))
    return page > 1 and final


class DatabaseBusyError(ConnectorError):
    """Another process has the DuckDB file open or a table locked; the message names both, if they are known."""


class NewerFormatError(ConfigError):
    """The warehouse was written by a later version, in a format that this one does not know; nothing was changed."""


class LockedError(ConnectorError):
    """Another run of the same pipeline and destination holds the lock; the message names it."""
