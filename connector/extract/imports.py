"""List the imports of the service, all of them or those of one status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from connector.extract.listing import Lister, Listing
from connector.models import Import, ImportPage, Reject, creation_time, key_of, replaces


class ImportsClient(Protocol):
    """What listing needs of `ServiceClient` (service/client): one endpoint."""

    async def list_imports(self, page: int, per_page: int | None, status: str | None) -> ImportPage: ...


class ImportLister(Lister[Import | Reject]):
    """A listing of the imports of `status`, or of all; `listed` is told the number of imports on each page.

    The service may also list imports of other statuses, which the caller leaves out.
    """

    def __init__(
        self,
        client: ImportsClient,
        status: str | None,
        listed: Callable[[int], None],
        *,
        expected: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        async def fetch(page: int, per_page: int) -> Sequence[Import | Reject]:
            reply = await client.list_imports(page, per_page, status)
            listed(reply.size)
            return [*reply.imports, *reply.rejects]

        super().__init__(
            fetch, key_of, replaces, creation_time, expected=0 if status is not None else expected, stop=stop
        )
        self._all_imports = None if status is None else ImportLister(client, None, listed, expected=expected, stop=stop)

    async def all(self) -> Listing[Import | Reject]:
        """List the imports; those of all statuses if the service finds none of the requested one.

        How the service compares statuses is unspecified (interface, "List imports"): one that writes `Completed` may
        find nothing that is `completed`.
        """
        listing = await super().all()
        if self._all_imports is None or listing.rows or self._stop():
            return listing
        return await self._all_imports.all()
