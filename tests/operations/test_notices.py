"""Word of runs that did not go well, to a webhook and to Slack."""

from __future__ import annotations

import pytest

from connector.cli import notices
from connector.cli.notices import Addresses, _statuses, notify
from connector.errors import ConfigError
from connector.sandbox import Faults, Service
from tests.operations.conftest import Listener

PATH = "/T000/very-private-hook"
HOOK = "IMPORTER_SYNC__NOTIFY_URL"
SLACK = "RUNTIME__SLACK_INCOMING_HOOK"


def test_a_partial_run_is_told(command, service: Service, listener: Listener) -> None:
    bad = service.slugs()[0]
    service.faults = Faults(failing_imports={bad})
    ended = command("run", "--json", **{HOOK: listener.url + PATH, SLACK: f"{listener.url}/slack"})
    assert ended.code == 3
    posts = {post.path: post for post in listener.posts}
    assert set(posts) == {PATH, "/slack"}
    told = posts[PATH].json
    assert (told["run_id"], told["status"], told["exit_code"]) == (ended.document["run_id"], "partial", 3)
    assert told["counts"]["imports_failed"] == 1
    assert told["counts"]["records_loaded"] == 240
    assert bad in told["error"]
    assert bad in posts["/slack"].json["text"]
    assert "partial" in posts["/slack"].json["text"]


def test_a_run_that_never_began_is_told_and_one_that_succeeded_is_not(command, listener: Listener) -> None:
    hook = {HOOK: listener.url + PATH}
    assert command("run", **hook).code == 0
    assert listener.posts == []
    assert command("run", **hook, SOURCES__IMPORTER__DELETES="sometimes").code == 2
    [post] = listener.posts
    assert (post.json["status"], post.json["exit_code"], post.json["run_id"]) == ("failed", 2, None)
    assert "deletes" in post.json["error"]
    assert command("run", **hook, IMPORTER_SYNC__NOTIFY_ON="succeeded").code == 0
    assert listener.posts[1].json["status"] == "succeeded"


def test_no_secret_is_in_a_notice(command, listener: Listener) -> None:
    ended = command(
        "run", "--to", "postgresql://ana:pass-word-12@127.0.0.1:9/pass-word-12", **{HOOK: listener.url + PATH}
    )
    assert ended.code == 1
    [post] = listener.posts
    assert b"pass-word-12" not in post.body
    assert command.environment["SOURCES__IMPORTER__ACCESS_TOKEN"].encode() not in post.body


def test_a_notice_that_fails_is_a_warning_without_the_address(command, listener: Listener) -> None:
    listener.status = 404
    hooks = {HOOK: listener.url + PATH, SLACK: listener.url + PATH}
    ended = command("run", **hooks, SOURCES__IMPORTER__ACCESS_TOKEN="wrong-token-0815")
    assert ended.code == 1
    assert ended.err.count("answered 404") == 2
    assert "very-private-hook" not in ended.err + ended.out


@pytest.mark.parametrize("status", [302, 400, 500])
def test_only_a_reply_of_success_counts(listener: Listener, status: int) -> None:
    listener.status = status
    to = Addresses(listener.url, None, frozenset({"failed"}))
    [sentence] = notify(to, {"status": "failed"}, 1, "importer")
    assert f"answered {status}" in sentence


def test_a_server_that_hangs_or_is_not_there_holds_nothing_up(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LIMIT_S", 0.4)
    listener.may_answer.clear()  # until this test ends
    everybody = frozenset(notices.STATUSES)
    sentences = notify(Addresses(listener.url, listener.url, everybody), {"status": "failed"}, 1, "importer")
    assert len(sentences) == 2
    assert all("did not answer within 0.4 s" in each or "could not be reached" in each for each in sentences)
    [sentence] = notify(Addresses("http://127.0.0.1:9/hook", None, everybody), {"status": "failed"}, 1, "importer")
    assert "could not be reached" in sentence
    assert "hook" not in sentence.replace("webhook", "")


def test_a_run_that_found_another_one_is_told_only_on_request(listener: Listener) -> None:
    document = {"status": "failed", "error": "Another run is under way."}
    assert notify(Addresses(listener.url, None, _statuses(None)), document, 4, "importer") == []
    assert listener.posts == []
    assert notify(Addresses(listener.url, None, _statuses("failed, locked")), document, 4, "importer") == []
    assert len(listener.posts) == 1


def test_what_outcomes_can_be_called() -> None:
    assert _statuses(None) == {"failed", "partial"}
    assert _statuses("failed") == {"failed"}
    assert _statuses(["failed", "interrupted"]) == _statuses("['failed','interrupted']") == {"failed", "interrupted"}
    with pytest.raises(ConfigError, match="notify_on"):
        _statuses("never")


def test_an_address_that_is_none_is_refused_unseen(command) -> None:
    ended = command("run", **{HOOK: "very-private-hook"})
    assert ended.code == 2
    assert "notify_url" in ended.err
    assert "very-private-hook" not in ended.err
