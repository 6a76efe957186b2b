"""Apply the privacy rules to each page as it is decoded, before other code sees it.

Invariant: with any rule on, no page leaves the client unprotected. Records are under the rules of their import's
template, metadata is under its own rules, and a reject, which cannot be split into fields, loses its payload. While the
client is open, a template keeps the name with which it was first seen, or that was given to it (`adopt`), so a rename
does not lift the rules from later replies. The next run sees the new name before it reads, and reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import structs
from pydantic import SecretStr

from connector.models import Import, ImportPage, Record, RecordPage, Reject, Template
from connector.service.decode import decode_import, decode_import_page, decode_record_page
from connector.transform.privacy import Privacy, withheld
from connector.transform.protection import Protection, Unprotectable


class Guard:
    """A decoder of replies under the rules, which knows the template of each import shown so far.

    `titles` are the names under which there are rules.
    """

    def __init__(self, privacy: Privacy, token: SecretStr) -> None:
        self._privacy = privacy
        self.titles = frozenset(privacy.sections)
        self._key = privacy.key or token.get_secret_value().encode()
        self._templates: dict[str, Template | None] = {}
        self._names: dict[str, Template] = {}  # by slug
        self._listed: dict[str, tuple[datetime, int, str]] = {}

    def knows(self, slug: str) -> bool:
        return slug in self._templates

    def adopt(self, imports: Iterable[Import]) -> None:
        """Use the templates of these imports, and their names, from now on: the run decides by them."""
        for import_ in imports:
            self._templates[import_.slug] = import_.template
            if import_.template is not None:
                self._names[import_.template.slug] = import_.template

    def learn(self, slug: str, import_: Import) -> None:
        """Keep the template of an import; a later reply without a template does not remove it."""
        if import_.template is not None or slug not in self._templates:
            self._templates[slug] = import_.template

    def import_page(self, body: bytes) -> ImportPage:
        page = decode_import_page(body)
        rejects = [self._withheld(each) for each in page.rejects]
        imports = [self._import(each) for each in page.imports]
        for import_ in imports:
            self._listed[import_.slug] = import_.fingerprint
            self.learn(import_.slug, import_)
        return ImportPage(imports, rejects, page.size)

    def import_(self, body: bytes) -> Import:
        """Return an import read from its own URL; the listed version gets the template of the listing."""
        import_ = self._import(decode_import(body))
        if self._listed.get(import_.slug) != import_.fingerprint:
            self.learn(import_.slug, import_)
        return import_

    def record_page(self, import_slug: str, body: bytes) -> RecordPage:
        page = decode_record_page(body)
        template = self._templates.get(import_slug)
        slug, name = (template.slug, template.name) if template is not None else (None, None)
        rules = self._privacy.of_template(slug, name)
        rejects = [self._withheld(each) for each in page.rejects]
        records = page.records
        if rules is not None:
            records = []
            for record in page.records:
                try:
                    records.append(_protected(record, rules))
                except Unprotectable as why:
                    payload = withheld(record.data.decode("utf-8", "replace"), self._key)
                    reason = f"the privacy rules cannot be applied to it: {why}"
                    rejects.append(Reject(record.slug, reason, payload, by_rules=True))
        return RecordPage(records, rejects, page.size, self._metadata(page.metadata))

    def _import(self, import_: Import) -> Import:
        if (template := import_.template) is not None:
            import_ = import_.named(self._names.setdefault(template.slug, template))
        if self._privacy.of_metadata is None:
            return import_
        told = {name: self._metadata(getattr(import_, name)) for name in ("metadata_json", "extra_json")}
        return structs.replace(import_, **told)

    def _metadata(self, text: bytes | None) -> bytes | None:
        """Return protected metadata; None if it is no object or can't be parsed, because no rule can find its paths."""
        rules = self._privacy.of_metadata
        if rules is None or text is None:
            return text
        try:
            return rules.of(text) if text[:1] == b"{" else None
        except Unprotectable:
            return None

    def _withheld(self, reject: Reject) -> Reject:
        return Reject(reject.record_slug, reject.reason, withheld(reject.payload, self._key))


def _protected(record: Record, rules: Protection) -> Record:
    extra = None if record.extra is None else rules.of(record.extra)
    extra = None if extra == b"{}" else extra
    return Record(record.slug, rules.of(record.data), record.created_at, record.updated_at, record.sort, extra)
