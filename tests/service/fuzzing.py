"""Replies that somebody spoilt, each from a seed: a valid page, then its bytes, packing, framing, head or pace.

`Spoilt` knows the body that it ended up with, as far as its framing left it whole: what is read of it is compared with
the standard library's reading, and neighbours that nobody touched have to come through.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.service.hostile import Reply

VALUES = (
    "1",
    "-0",
    "0.10",
    "1e999999999",
    "9" * 400,
    "123456789012345678901234567890",
    "true",
    "null",
    '"x"',
    '"é 😀"',
    r'"\ud800"',
    r'"\u0000"',
    '"}]\\",{["',
    "{}",
    "[]",
    '{"a":{"b":[1,{"c":null}]}}',
    '"007"',
    '"2026-01-02"',
    '""',
)
INSTEAD = (
    "NaN",
    "Infinity",
    "-",
    "01",
    "1.",
    "'x'",
    '"\\x"',
    '"\x01"',
    '"open',
    "{",
    "[",
    "}",
    "]",
    "[" * 3_000,
    "[" * 3_000 + "]" * 3_000,
    '{"a":' * 500 + "1" + "}" * 500,
    "9" * 20_000,
    '"' + "a" * 20_000 + '"',
    "undefined",
    '{"a":1,"a":2}',
    '"\ud800"',
    "1 2",
    "",
    ",",
    "\x00",
    "/* */1",
)
SLUGS = ('""', "7", "null", r'"\ud800"', r'"a\u0000"', '"' + "s" * 3_000 + '"', '["r"]', '"r0"', "{}", "true")
TIMES = (
    '"soon"',
    "7",
    '"2026-13-01T00:00:00Z"',
    '"9999-12-31T23:59:59-12:00"',
    '"2026-01-01"',
    "null",
    '"' + "1" * 99 + '"',
)
OTHERS = (
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'{"data":{}}',
    b'{"data":null}',
    b'{"Data":[]}',
    b'{"data":[],"data":[{}]}',
    b"<html><body>Sign in</body></html>",
    b'{"data":[' * 9_000,
    b"[" * 50_000,
    b'{"error":"no"}',
    b'{"data":[null,,1]}',
)
CHARSETS = ("utf-16", "utf-32", "latin-1", "cp037")
SORTS = ("1.5", "1e400", "9" * 30, '"1"', "true", "-1", "NaN", "1.0")
JUNK_HEADERS = (
    b"Content-Type: text/html; charset=utf-16",
    b"Content-Type: \xff\xfe",
    b"Content-Type",
    b": x",
    b"X-A: " + b"a" * 9_000,
    b"Date: yesterday",
    b"Date: Sun, 99 Foo 20260 99:99:99 GMT",
    b"Content-Encoding: br",
    b"Content-Encoding: deflate",
    b"Content-Encoding: gzip",
    b"Content-Encoding: identity",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: 3",
    b"Content-Length: -1",
    b"Content-Length: 1_0",
    b"Content-Length: 99999999999999999999",
    b"Content-Range: bytes 0-9/99",
    b"Location: http://127.0.0.1:1/",
    b"Set-Cookie: a=b",
    b"Connection: close",
    b"Trailer: x",
    b"Retry-After: -5",
    b"Retry-After: 1e9",
    b"Retry-After: \xc3\xa9",
    b"\x00: y",
    b"Upgrade: websocket",
)
STATUSES = (
    *range(201, 206),
    206,
    226,
    299,
    300,
    304,
    307,
    400,
    401,
    403,
    404,
    408,
    410,
    418,
    425,
    429,
    451,
    *range(500, 505),
)
ODD_STATUSES = (522, 599, 600, 999, 100, 0, 99, 2000, -20, "OK")


@dataclass
class Spoilt:
    """A reply on its way; `body` is None once nobody can say what a reader should take for its body."""

    seed: int
    listing: bool  # of imports; else it is a page of records
    rows: list[bytes]
    body: bytes | None
    reply: Reply = field(default_factory=Reply)
    done: list[str] = field(default_factory=list)

    @property
    def is_as_it_was(self) -> bool:
        return not self.done


def spoilt(seed: int, *, hangs: bool = True) -> Spoilt:
    """The reply of a seed; a tenth of them is valid, only packed and framed in one of the ways there are."""
    dice = Random(f"reply {seed}")
    listing = dice.random() < 0.2
    row = _import_row if listing else _row
    rows = [row(dice, f"r{seed}.{number}", number) for number in range(dice.choice((0, 1, 1, 2, 3, 5, 40)))]
    made = Spoilt(seed, listing, list(rows), None)
    if dice.random() < 0.5:
        rows = _spoil_rows(dice, rows, made)
    body = (
        b'{"data":['
        + dice.choice((b",", b" ,\n ")).join(rows)
        + b'],"metadata":'
        + dice.choice((b"{}", b"null", b'{"a":1}'))
        + b"}"
    )
    if dice.random() < 0.3:
        body = _spoil_body(dice, body, made.done)
    made.body = body
    _send(dice, made, body, hangs)
    return made


def _row(dice: Random, slug: str, number: int) -> bytes:
    data = ",".join(f'"{dice.choice("abcdefgh")}{n}":{dice.choice(VALUES)}' for n in range(dice.randrange(5)))
    rest = "".join(
        f',"{name}":{value}'
        for name, value in (
            ("created_at", '"2026-01-01T00:00:00Z"'),
            ("updated_at", '"2026-01-02T00:00:00.5+02:00"'),
            ("sort", str(number)),
            ("more", dice.choice(VALUES)),
        )
        if dice.random() < 0.7
    )
    return f'{{"slug":"{slug}","data":{{{data}}}{rest}}}'.encode()


def _import_row(dice: Random, slug: str, _number: int) -> bytes:
    template = dice.choice(("null", '{"slug":"t","name":"T"}', '{"slug":"t"}'))
    return (
        f'{{"slug":"{slug}","row_count":{dice.choice((0, 3, 10**9))},"created_at":"2026-01-01T00:00:00Z",'
        f'"updated_at":"2026-01-02T00:00:00.5+02:00","status":"completed","template":{template},'
        f'"metadata":{dice.choice(VALUES)}}}'
    ).encode()


def _spoil_rows(dice: Random, rows: list[bytes], made: Spoilt) -> list[bytes]:
    rows = list(rows)
    for _ in range(min(len(rows), dice.choice((1, 1, 2)))):
        at = dice.randrange(len(rows))
        kind = dice.choice(("value", "slug", "times", "sort", "data", "twice", "key", "bytes", "whole"))
        made.done.append(f"row {at}: {kind}")
        rows[at] = _bytes(dice, rows[at]) if kind == "bytes" else _other_row(dice, kind, f"r{made.seed}", at)
    return rows


def _other_row(dice: Random, kind: str, prefix: str, at: int) -> bytes:
    slug, other = f'"{prefix}.{at}"', dice.choice((*SLUGS, f'"{prefix}.0"'))
    value = dice.choice(VALUES + INSTEAD)
    texts = {
        "value": f'{{"slug":{slug},"data":{{"a":{value}}}}}',
        "slug": f'{{"slug":{other},"data":{{}}}}',
        "times": f'{{"slug":{slug},"data":{{}},"updated_at":{dice.choice(TIMES)}}}',
        "sort": f'{{"slug":{slug},"data":{{}},"sort":{dice.choice(SORTS)}}}',
        "data": f'{{"slug":{slug},"data":{value}}}',
        "twice": f'{{"slug":"x","data":{{"a":1}},"slug":{slug},"data":{{"b":2}}}}',
        "key": f'{{"SLUG":{slug},"data":{{}}}}',
        "whole": value,
    }
    return texts[kind].encode("utf-8", "surrogatepass")


def _bytes(dice: Random, text: bytes) -> bytes:
    """Some bytes of it flipped, taken out, put in or doubled."""
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        at = dice.randrange(len(text) + 1)
        to = min(len(text), at + dice.choice((1, 1, 2, 9, 50)))
        kind = dice.randrange(4)
        if kind == 0:
            text = text[:at] + bytes(byte ^ (1 << dice.randrange(8)) for byte in text[at:to]) + text[to:]
        elif kind == 1:
            text = text[:at] + text[to:]
        elif kind == 2:
            text = (
                text[:at]
                + dice.choice((b"\x00", b"\xff", b'"', b"\\", b",", b"{", b"]", b"\xe2\x80\xa8", b"\xc3"))
                + text[at:]
            )
        else:
            text = text[:to] + text[at:to] + text[to:]
    return text


def _spoil_body(dice: Random, body: bytes, done: list[str]) -> bytes:
    kinds: dict[str, Callable[[], bytes]] = {
        "bytes": lambda: _bytes(dice, body),
        "cut": lambda: body[: dice.randrange(len(body))],
        "tail": lambda: body + dice.choice((b"x", b"{}", b"\x00", b",", b"\n\n", body)),
        "front": lambda: (
            dice.choice((b"\xef\xbb\xbf", b"\xef\xbb\xbf \n", b")]}',\n", b" ", b"\xff\xfe", b"\x00")) + body
        ),
        "charset": lambda: body.decode("utf-8", "replace").encode(dice.choice(CHARSETS), "replace"),
        "other": lambda: dice.choice(OTHERS),
        "many": lambda: b'{"data":[' + b",".join([dice.choice((b"1", b"{}", b'{"slug":"m"}'))] * 1_001) + b"]}",
        "twice": lambda: b'{"data":[{"slug":"first","data":{}}],' + body[1:],
    }
    kind = dice.choice(list(kinds))
    done.append(f"body: {kind}")
    return kinds[kind]()


def _send(dice: Random, made: Spoilt, body: bytes, hangs: bool) -> None:
    """Packs and frames it, well or badly, and spoils head and pace."""
    content, headers = _packed(dice, made, body)
    headers += [b"Content-Type: application/json"]
    framing = dice.random()
    then = "keep"
    if framing < 0.6:
        head, wire = [b"Content-Length: %d" % len(content)], content
    elif framing < 0.75:
        cuts = sorted(dice.randrange(len(content) + 1) for _ in range(dice.randrange(4)))
        pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True) if a != b]
        wire = (
            b"".join(b"%x%s\r\n%s\r\n" % (len(p), dice.choice((b"", b"", b";x=y")), p) for p in pieces) + b"0\r\n\r\n"
        )
        head = [b"Transfer-Encoding: chunked"]
    elif framing < 0.85:
        head, wire, then = [], content, "close"
    else:
        made.done.append("framing")
        made.body = None
        lengths = (len(content) + 1, len(content) * 2 + 9, max(0, len(content) - 1), len(content) // 2, 0)
        head = dice.choice(([b"Content-Length: %d" % dice.choice(lengths)], [b"Transfer-Encoding: chunked"], []))
        wire = dice.choice(
            (content, b"%x\r\n" % (len(content) + 3) + content, b"zz\r\n" + content, content[: len(content) // 2])
        )
        then = dice.choice(("close", "reset"))
    status = "200"
    if dice.random() < 0.12:
        status = str(dice.choice((*STATUSES, *ODD_STATUSES)))
        made.done.append(f"status {status}")
    if dice.random() < 0.15:
        extra = dice.choice(JUNK_HEADERS)
        made.done.append(f"header {extra[:40]!r}")
        made.body = None
        headers.insert(dice.randrange(len(headers) + 1), extra)
    text = b"\r\n".join([f"HTTP/1.1 {status} Whatever".encode(), *head, *headers]) + b"\r\n\r\n"
    if dice.random() < 0.04:
        made.done.append("head")
        made.body = None
        text = dice.choice(
            (
                _bytes(dice, text),
                text.replace(b"\r\n", b"\n"),
                b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + text,
                text.replace(b"HTTP/1.1", b"HTTP/0.9"),
                b"\r\n" + text,
                b"\x16\x03\x01" + text,
            )
        )
        then = "close"
    made.reply = Reply(text + wire, then)
    if dice.random() < 0.05:
        made.reply = _paced(dice, made, text + wire, then, hangs)


def _packed(dice: Random, made: Spoilt, body: bytes) -> tuple[bytes, list[bytes]]:
    how = dice.random()
    if how < 0.6:
        return body, []
    if how < 0.8:
        cut = dice.randrange(len(body) + 1)
        parts = [body] if dice.random() < 0.5 else [body[:cut], body[cut:]]
        packed = b"".join(gzip.compress(part, dice.choice((0, 1, 9)), mtime=0) for part in parts)
        return packed + dice.choice((b"", b"\0\0\0")), [
            dice.choice((b"Content-Encoding: gzip", b"content-encoding:  X-GZIP "))
        ]
    if how < 0.88:
        return body, [b"Content-Encoding: identity"]
    made.done.append("packing")
    made.body = None
    packed = gzip.compress(body, mtime=0)
    bad: bytes = dice.choice(
        (
            _bytes(dice, packed),
            packed[: dice.randrange(len(packed))],
            packed + b"junk",
            body,
            zlib.compress(body),
            b"",
            gzip.compress(packed),
            packed + gzip.compress(b"") * 200,
            packed[:-4] + b"\0\0\0\0",
            gzip.compress(b" " * 2**20) + packed,
        )
    )
    return bad, [dice.choice((b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Content-Encoding: br, gzip"))]


def _paced(dice: Random, made: Spoilt, wire: bytes, then: str, hangs: bool) -> Reply:
    """In pieces with pauses; one in five stops for ever somewhere."""
    cuts = sorted(dice.randrange(len(wire) + 1) for _ in range(dice.randrange(1, 6)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    if hangs and dice.random() < 0.2:
        made.done.append("stops")
        made.body = None
        pieces, then = pieces[:-1], "hang"
    return Reply(drip=pieces, pause_s=0.0, then=then)
