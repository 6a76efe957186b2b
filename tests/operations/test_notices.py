"""Word of runs that did not go well, to a webhook and to Slack."""

from __future__ import annotations

import re
from pathlib import Path

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


@pytest.mark.parametrize("status", [302, 307, 400, 500])
def test_only_a_reply_of_success_counts_and_no_redirect_is_followed(listener: Listener, status: int) -> None:
    listener.status = status
    listener.location = f"{listener.url}/elsewhere"
    to = Addresses(f"{listener.url}{PATH}", f"{listener.url}/slack", frozenset({"failed"}))
    sentences = notify(to, {"status": "failed"}, 1, "importer")
    assert [f"answered {status}" in sentence for sentence in sentences] == [True, True]
    assert {post.path for post in listener.posts} == {PATH, "/slack"}


def test_a_notice_holds_no_markup_of_slack(listener: Listener) -> None:
    to = Addresses(None, f"{listener.url}/slack", frozenset({"failed"}))
    error = "Import <!channel> <http://evil|click>\u202e\n2026-11-23T00:00:00Z ERROR forged"
    assert notify(to, {"status": "failed", "error": error}, 1, "importer") == []
    [post] = listener.posts
    assert "Import &lt;!channel&gt; &lt;http://evil|click&gt;⟨U+202E⟩⟨U+000A⟩2026" in post.json["text"]
    assert post.json["mrkdwn"] is False


def test_a_server_that_hangs_or_is_not_there_holds_nothing_up(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LIMIT_S", 0.4)
    listener.may_answer.clear()  # until this test ends
    everybody = frozenset(notices.STATUSES)
    sentences = notify(Addresses(listener.url, listener.url, everybody), {"status": "failed"}, 1, "importer")
    assert len(sentences) == 2
    assert all("did not answer within 0.4 s" in each or "could not be reached" in each for each in sentences)
    monkeypatch.setattr(notices, "LIMIT_S", 60)  # a busy machine is not refused within 0.4 s
    [sentence] = notify(Addresses("http://127.0.0.1:9/hook", None, everybody), {"status": "failed"}, 1, "importer")
    assert "could not be reached" in sentence
    assert "hook" not in sentence.replace("webhook", "")


def test_a_run_that_found_another_one_is_told_only_on_request(listener: Listener) -> None:
    document = {"status": "failed", "error": "Another run is under way."}
    assert notify(Addresses(listener.url, None, _statuses(None)), document, 4, "importer") == []
    assert listener.posts == []
    assert notify(Addresses(listener.url, None, _statuses("failed, locked")), document, 4, "importer") == []
    assert len(listener.posts) == 1


@pytest.mark.thorough
def test_what_stays_bad_is_told_once_and_that_it_is_well_again(command, service: Service, listener: Listener) -> None:
    hook = {HOOK: listener.url + PATH}
    service.faults = Faults(failing_imports={service.slugs()[0]})
    assert [command("run", **hook).code for _ in range(3)] == [3, 3, 3]
    assert [post.json["status"] for post in listener.posts] == ["partial"]
    assert command("run", **hook, SOURCES__IMPORTER__ACCESS_TOKEN="wrong-token-0815").code == 1
    assert [post.json["status"] for post in listener.posts] == ["partial", "failed"], "worse is news"
    service.faults = Faults()
    assert [command("run", **hook).code for _ in range(2)] == [0, 0]
    [*_, last] = [post.json for post in listener.posts]
    assert (len(listener.posts), last["status"], last["recovered"]) == (3, "succeeded", True)
    assert "succeeded again; it had not since 20" in last["text"]


def test_runs_into_two_warehouses_from_one_folder_are_told_apart(command, listener: Listener) -> None:
    hook = {HOOK: listener.url + PATH}
    wrong = {"SOURCES__IMPORTER__ACCESS_TOKEN": "wrong-token-0815"}
    eu, us = ("run", "--dataset", "eu"), ("run", "--dataset", "us")
    assert [command(*each, **hook, **wrong).code for each in (eu, us, us)] == [1, 1, 1]
    assert len(listener.posts) == 2
    assert command(*us, **hook).code == 0
    [*_, last] = [post.json for post in listener.posts]
    assert (len(listener.posts), last["status"], last["recovered"]) == (3, "succeeded", True)
    assert "dataset us" in last["text"]


@pytest.mark.thorough
def test_what_could_not_be_told_is_told_by_the_next_run(command, service: Service, listener: Listener) -> None:
    hook = {HOOK: listener.url + PATH}
    service.faults = Faults(failing_imports={service.slugs()[0]})
    listener.status = 500
    assert "was not notified" in command("run", **hook).err
    listener.status = 200
    assert command("run", **hook).code == 3
    assert [post.json["status"] for post in listener.posts] == ["partial", "partial"]


def test_each_recipient_is_told_once(tmp_path: Path, listener: Listener) -> None:
    document = {"status": "failed", "mode": "incremental", "error": "why"}

    def tell(slack: str) -> list[str]:
        to = Addresses(listener.url + PATH, slack, frozenset({"failed"}), notes=tmp_path)
        return notify(to, document, 1, "importer")

    assert [each.partition(" ")[0] for each in tell("http://127.0.0.1:1/slack")] == ["Slack"]
    assert [tell(f"{listener.url}/slack") for _ in range(2)] == [[], []]
    assert [post.path for post in listener.posts] == [PATH, "/slack"]


def test_new_fields_are_said_and_told_if_wanted(command, service: Service, listener: Listener) -> None:
    hook = {HOOK: listener.url + PATH}
    first = command("run", "--json", **hook)
    assert first.document["schema_changes"] == [], "of a first load all is new"
    slug = service.slugs()[0]
    content = next(iter(service.records(slug)))["data"]
    service.append_rows(slug, [{**content, "newsletter": True}])
    ended = command("run", **hook, IMPORTER_SYNC__NOTIFY_SCHEMA="true")
    assert re.search(r"schema    records_\w+ has a new field 'newsletter': newsletter \(bool\)", ended.out)
    [post] = listener.posts
    assert len(post.json["schema_changes"]) == 1
    assert "newsletter" in post.json["text"]
    service.append_rows(slug, [{**content, "newsletter": "monthly"}])
    changed = command("run", "--json", **hook)
    [sentence] = changed.document["schema_changes"]
    assert sentence.endswith(".newsletter has its first values that are not bool")
    assert len(listener.posts) == 1, "nobody asked for it"


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
