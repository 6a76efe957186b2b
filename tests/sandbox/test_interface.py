"""The sandbox against the interface document: every endpoint, every field, every status."""

from __future__ import annotations

import ast
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import jwt
import pytest

import connector.sandbox
from connector.sandbox import STATUSES, Request, Service, Template, session_claims

MISSING = str(uuid.UUID(int=1))


@pytest.fixture
def service() -> Service:
    service = Service(seed=3)
    service.add_generated("orders", imports=2, rows=30)
    return service


def test_an_import_has_the_documented_fields(service, ask):
    reply = ask(service, "/imports")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json()) == {"data"}
    shown = reply.json()["data"][0]
    assert set(shown) == {"slug", "row_count", "created_at", "updated_at", "status", "template", "metadata"}
    assert str(uuid.UUID(shown["slug"])) == shown["slug"]
    assert shown["row_count"] == 30
    assert shown["status"] == "completed"
    assert set(shown["template"]) == {"name", "slug"}
    assert shown["template"]["name"] == "orders"
    assert str(uuid.UUID(shown["template"]["slug"])) == shown["template"]["slug"]
    assert isinstance(shown["metadata"], dict)
    assert datetime.fromisoformat(shown["created_at"]) < datetime.fromisoformat(shown["updated_at"])


def test_one_import_is_shown_as_in_the_list(service, ask):
    listed = ask(service, "/imports").json()["data"]
    assert len(listed) == 2
    for shown in listed:
        assert ask(service, f"/imports/{shown['slug']}").json() == shown
    assert listed == service.imports()


def test_a_record_has_the_documented_fields(service, ask):
    slug = service.slugs()[0]
    reply = ask(service, f"/imports/{slug}/records?per_page=100")
    assert reply.status == 200
    assert set(reply.json()) == {"data", "metadata"}
    assert isinstance(reply.json()["metadata"], dict)
    records = reply.json()["data"]
    assert records == list(service.records(slug))
    assert [record["sort"] for record in records] == list(range(30))
    assert len({record["slug"] for record in records}) == 30
    for record in records:
        assert set(record) == {"slug", "data", "created_at", "updated_at", "sort"}
        assert uuid.UUID(record["slug"]).version == 4
        assert isinstance(record["data"], dict)
        assert datetime.fromisoformat(record["created_at"]).tzinfo is not None


def test_pages_follow_one_another_and_end_empty(service, ask):
    path = f"/imports/{service.slugs()[1]}/records"
    pages = [ask(service, f"{path}?page={page}&per_page=12").json()["data"] for page in (1, 2, 3, 4, 10**30)]
    assert [len(page) for page in pages] == [12, 12, 6, 0, 0]
    assert [record["sort"] for page in pages for record in page] == list(range(30))


@pytest.mark.parametrize(
    "query", ["page=0", "page=-1", "page=x", "page=", "page=1.5", "page=%D9%A1", "per_page=0", "per_page=ten"]
)
@pytest.mark.parametrize("list_name", ["imports", "records"])
def test_bad_page_numbers_are_refused(service, ask, query, list_name):
    path = "/imports" if list_name == "imports" else f"/imports/{service.slugs()[0]}/records"
    reply = ask(service, f"{path}?{query}")
    assert reply.status == 422
    assert set(reply.json()) == {"error", "message"}


def test_the_status_filter(ask):
    service = Service()
    slugs = {status: service.add_generated("orders", rows=1, status=status)[0] for status in STATUSES}
    for status, slug in slugs.items():
        shown = ask(service, f"/imports?status={status}").json()["data"]
        assert [(found["slug"], found["status"]) for found in shown] == [(slug, status)]
    assert ask(service, "/imports?status=nonsense").json()["data"] == []
    assert len(ask(service, "/imports?status=").json()["data"]) == len(STATUSES)


@pytest.mark.parametrize("path", ["/imports", "/imports/{slug}", "/imports/{slug}/records", "/importer/sessions"])
@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sandbox-token"}, {"authorization": ""}]
)
def test_every_endpoint_wants_the_bearer(service, path, headers):
    method = "POST" if "sessions" in path else "GET"
    path = f"/api/v1{path.format(slug=service.slugs()[0])}"
    reply = service.handle(Request(method, path, {}, headers, b'{"importer_slug": "demo"}'))
    assert reply.status == 401
    assert reply.json()["error"] == "unauthorized"
    accepted = service.handle(
        Request(method, path, {}, {"Authorization": "bearer sandbox-token"}, b'{"importer_slug": "demo"}')
    )
    assert accepted.status in (200, 201)


def test_what_is_not_there(service, ask):
    for path in (
        f"/imports/{MISSING}",
        f"/imports/{MISSING}/records",
        "/imports/no-uuid",
        "/nothing",
        "/imports/",
        "/imports/a/b",
    ):
        reply = ask(service, path)
        assert (reply.status, reply.json()["error"]) == (404, "not_found")
    assert service.handle(Request.of("GET", "/api/v2/imports", token="sandbox-token")).status == 404


def test_other_methods(service, ask):
    for method, path in (
        ("POST", "/imports"),
        ("DELETE", f"/imports/{service.slugs()[0]}"),
        ("GET", "/importer/sessions"),
    ):
        reply = ask(service, path, method)
        assert reply.status == 405
        assert reply.headers["allow"] in ("GET", "POST")
        assert reply.headers["allow"] != method


def test_a_session_token(ask):
    now = datetime.now(UTC).replace(microsecond=0)
    service = Service(seed=3, wall_clock=lambda: now)
    body = {"importer_slug": "orders", "metadata": {"user": "Zoë", "n": 1}}
    reply = ask(service, "/importer/sessions", "POST", body)
    assert reply.status == 201
    assert set(reply.json()) == {"token"}
    claims = session_claims(service.session_key, reply.json()["token"])
    assert claims.pop("iat") == now.timestamp()
    assert claims.pop("exp") > now.timestamp()
    assert claims == {"iss": "importer-sandbox", **body}
    with pytest.raises(jwt.InvalidSignatureError):
        session_claims(Service(seed=4).session_key, reply.json()["token"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"importer_slug": "nobody"}, 404),
        ({"importer_slug": "demo"}, 201),
        ({"importer_slug": "demo", "metadata": None}, 422),
        ({"importer_slug": "demo", "metadata": [1]}, 422),
        ({"importer_slug": 7}, 422),
        ({"importer_slug": ""}, 422),
        ({}, 422),
        ([], 422),
        ("demo", 422),
    ],
)
def test_session_bodies(ask, body, status):
    reply = ask(Service(), "/importer/sessions", "POST", body)
    assert reply.status == status
    assert "token" in reply.json() if status == 201 else set(reply.json()) == {"error", "message"}


@pytest.mark.parametrize("body", [b"", b"{", b"importer_slug=demo", b"\xff\xfe"])
def test_session_bodies_that_are_not_json(body):
    headers = {"authorization": "Bearer sandbox-token"}
    assert Service().handle(Request("POST", "/api/v1/importer/sessions", {}, headers, body)).status == 422


def test_templates_become_importers():
    service = Service()
    assert {"demo", "customers", "orders"} <= service.importers
    service.add_import("my own", [{"a": 1}])
    assert "my own" in service.importers


def test_an_import_without_template():
    service = Service()
    service.add_import(None, [{"a": 1}])
    service.add_import(Template("Given", MISSING), [{"a": 1}])
    assert [shown["template"] for shown in service.imports()] == [None, {"name": "Given", "slug": MISSING}]


def test_requests_are_counted_and_logged(service, ask):
    slug = service.slugs()[0]
    seen: list[str] = []
    service.on_request = lambda request: seen.append(request.path)
    ask(service, "/imports?page=2")
    ask(service, f"/imports/{slug}")
    ask(service, f"/imports/{slug}/records")
    ask(service, f"/imports/{MISSING}/records")
    ask(service, "/importer/sessions", "POST", {})
    ask(service, "/else")
    assert service.requests == {"imports": 1, "import": 1, "records": 2, "sessions": 1, "unknown": 1}
    assert service.log[0] == ("GET", "/api/v1/imports", {"page": "2"}, 200)
    assert [entry[3] for entry in service.log] == [200, 200, 200, 404, 422, 404]
    assert seen == [entry[1] for entry in service.log]


def test_the_hook_may_edit_before_the_answer(service, ask):
    service.on_request = lambda request: service.delete_import(service.slugs()[0])
    assert len(ask(service, "/imports").json()["data"]) == 1


def test_error_bodies_are_json_everywhere(service, ask):
    for path, method in (("/nothing", "GET"), ("/imports", "PUT"), ("/imports?page=x", "GET")):
        assert json.loads(ask(service, path, method).body)["message"]


def test_the_sandbox_imports_nothing_from_the_connector():
    folder = Path(connector.sandbox.__file__).parent
    sources = sorted(folder.glob("*.py"))
    assert len(sources) > 10
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "connector" or name.startswith("connector.sandbox"), source.name
