"""Shares: made frozen, changed, ended, and nothing left to reach afterwards (S8–S10)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core import mail
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from copilot.chat import sessions
from copilot.files import services as files
from copilot.models import Message, Share, SharedFile, Turn, WorkspaceFile
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, V1, code_of, person, program
from tests.support.shares import asked_of, shared_page, spoken, status, stored, stranger

pytestmark = pytest.mark.django_db


def share(session, **asked):
    return sharing.publish_session(session.owner_id, session.pk, ShareRequest(**asked), ShareTerms())


# --- creating (S8) -----------------------------------------------------------------------------------


def test_a_share_is_frozen():
    """A-S8.1"""
    session = spoken("First", "One")
    made = share(session)
    before = shared_page(made).content
    for number in range(3):
        factories.message(session, content=f"later {number}", turn=factories.turn(session, "succeeded"))
    sessions.update_session(session.owner_id, session.pk, title="Renamed")
    Message.objects.filter(session=session, kind="assistant").update(content="edited")
    assert shared_page(made).content == before


CANARIES = {
    "reasoning": "canary-thought",
    "argument": "canary-argument",
    "output": "canary-output",
    "context": "canary-context",
    "summary": "canary-summary",
    "notice": "canary-details",
    "note": "canary-note",
    "queued": "canary-queued",
    "hidden": "canary-undone",
    "page": "canary-page",
    "replay": "canary-replay",
    "model": "canary-model",
    "file": "canary-file",
}


def full_of_canaries():
    """A session in which everything that must stay private has a name of its own."""
    session = factories.session(title="Plans")
    turn = factories.turn(session, "succeeded", worker="canary-worker", run_ids=["canary-run"])
    said = factories.message(session, content="Hello", turn=turn)
    Message.objects.filter(pk=said.pk).update(
        server_context=CANARIES["context"], page_context={"url": CANARIES["page"]}, run_id="canary-run"
    )
    thought = factories.message(session, "reasoning", content=CANARIES["reasoning"], turn=turn)
    Message.objects.filter(pk=thought.pk).update(replay=[CANARIES["replay"]])
    factories.message(
        session,
        "tool_call",
        call_id="canary-call",
        data={"tool": "web_fetch", "arguments": {"url": CANARIES["argument"]}},
        turn=turn,
    )
    factories.message(
        session,
        "tool_result",
        call_id="canary-call",
        content=CANARIES["output"],
        data={
            "tool": "web_fetch",
            "success": True,
            "preview": CANARIES["output"],
            "duration_ms": 1,
            "truncated": False,
            "file_id": "canary-file",
        },
        turn=turn,
    )
    text = f"Answer <env_context>\n{CANARIES['context']}\n</env_context>with sk-abcdefghijklmnopqrstuvwx1234."
    factories.message(session, "assistant", content=text, turn=turn)
    Message.objects.filter(session=session).update(model=CANARIES["model"])
    factories.message(session, "summary", content=CANARIES["summary"], turn=turn)
    factories.message(session, "note", content=CANARIES["note"], turn=turn)
    factories.message(session, "notice", data={"code": "stopped", "details": CANARIES["notice"]}, turn=turn)
    undone = factories.message(session, "assistant", content=CANARIES["hidden"], turn=turn)
    Message.objects.filter(pk=undone.pk).update(hidden="undone")
    factories.pending(session, CANARIES["queued"])
    return session


def everything_public(made):
    anybody = stranger()
    page = anybody.get(f"/share/{made.token}").content
    payload = anybody.get(f"{V1}/public/shares/{made.token}").content
    return (page + payload + json.dumps(made.payload).encode()).decode()


def test_nothing_private_is_in_what_is_published():
    """A-S8.2"""
    ada = factories.ada()
    found = everything_public(share(full_of_canaries(), show_author=True))
    assert "Hello" in found
    assert "Answer" in found
    assert "Web fetch" in found  # the step's label
    for secret in ("canary", "sk-abc", ada.email, '"cost', "tokens"):
        assert secret not in found, secret


def test_what_is_asked_for_is_published_and_secrets_are_still_masked():
    """A-S8.2: reasoning and tools only when asked"""
    found = everything_public(share(full_of_canaries(), include_reasoning=True, include_tools=True))
    shown = {name for name, canary in CANARIES.items() if canary in found}
    assert shown == {"reasoning", "argument", "output"}
    assert "sk-abc" not in found


def test_a_running_turn_is_not_shared():
    """A-S8.3"""
    session = spoken("Question", "Finished answer")
    running = factories.turn(session, Turn.Status.RUNNING)
    factories.message(session, content="running question", turn=running)
    partial = factories.message(session, "assistant", content="half an ans", turn=running, streaming=True)
    for through in (None, partial.pk):
        found = everything_public(share(session, through=through))
        assert "Finished answer" in found
        assert "running question" not in found
        assert "half an ans" not in found


def test_a_share_ends_at_the_message_asked_for():
    """S8: `through`"""
    session = spoken("One", "1", "Two", "2")
    place = Message.objects.get(session=session, content="1")
    found = everything_public(share(session, through=place.pk))
    assert ">One<" in found
    assert "Two" not in found
    bobs = factories.message(factories.session(factories.bob()))
    for wrong in (bobs.pk, NOBODYS):
        answer = asked_of(session, through=str(wrong))
        assert (answer.status_code, code_of(answer)) == (404, "not_found")


def test_names_of_other_people_are_not_published():
    """S8"""
    session = spoken("Hi", "Hello Bobby Tables")
    Message.objects.filter(session=session, kind="user").update(author="Bobby Tables", origin="discord")
    found = everything_public(share(session))
    assert "Bobby" not in found
    assert "Member 1" in found


def test_what_cannot_be_shared_is_refused(settings):
    """S8"""
    session = factories.session()
    assert code_of(asked_of(session)) == "nothing_to_share"
    factories.message(session, content="x", turn=factories.turn(session, "running"))
    assert (asked_of(session).status_code, code_of(asked_of(session))) == (409, "nothing_to_share")
    long = spoken(*["word"] * 4)
    settings.SHARE_MESSAGES_MAX = 3
    refused = asked_of(long)
    assert (refused.status_code, code_of(refused)) == (413, "too_long_to_share")
    assert "through" in refused.json()["error"]["hint"]
    settings.SHARE_MESSAGES_MAX, settings.SHARE_PAYLOAD_MAX_BYTES = 2000, 100
    assert code_of(asked_of(long)) == "too_long_to_share"
    assert not Share.objects.exists()


def test_only_its_owner_shares_a_session_and_a_key_needs_the_right():
    """S8, A20.6"""
    session = spoken("Hi", "Ho")
    path = f"{V1}/sessions/{session.pk}/share"
    for wrong in (person(factories.bob()),):
        assert wrong.post(path, {}, content_type=JSON).content == NOT_FOUND
        assert wrong.post(f"{path}/preview", {}, content_type=JSON).content == NOT_FOUND
    assert code_of(program(factories.ada()).post(path, {}, content_type=JSON)) == "insufficient_scope"
    made = program(factories.ada(), "read", "manage").post(path, {"expires_in": 86400}, content_type=JSON)
    assert made.status_code == 201
    assert made.json()["url"].endswith(f"/share/{made.json()['token']}")
    assert made.json()["expires_at"]
    assert made.json()["files"] == []


def test_a_preview_shows_what_a_share_would_and_stores_nothing():
    """S8"""
    session = spoken("Hi", "Ho")
    seen = person(factories.ada()).post(
        f"{V1}/sessions/{session.pk}/share/preview", {"title": "Mine", "show_author": True}, content_type=JSON
    )
    assert (seen.json()["title"], seen.json()["author"]) == ("Mine", "ada")
    assert [entry["text"] for entry in seen.json()["messages"]] == ["Hi", "Ho"]
    assert not Share.objects.exists()


def test_a_single_file_is_shared_with_the_same_rules():
    """S8"""
    file = stored("notes.txt", b"hello")
    ada, anybody = person(factories.ada()), stranger()
    path = f"{V1}/files/{file.pk}/share"
    first = ada.post(path, {"password": "open sesame"}, content_type=JSON).json()
    second = ada.post(path, {}, content_type=JSON).json()
    assert status(f"/share/{first['token']}") == 404
    assert b"notes.txt" in anybody.get(f"/share/{second['token']}").content
    got = anybody.get(f"/share/{second['token']}/files/{file.pk}")
    assert b"".join(got.streaming_content) == b"hello"
    [listed] = ada.get(f"{V1}/shares?file={file.pk}").json()["items"]
    assert listed["files"] == [{"id": str(file.pk), "name": "notes.txt", "type": "text/plain", "size": 5}]
    assert ada.delete(path).status_code == 204
    assert status(f"/share/{second['token']}") == 404
    assert ada.delete(path).status_code == 404
    assert person(factories.bob()).post(path, {}, content_type=JSON).content == NOT_FOUND


def test_a_file_that_is_being_checked_is_not_shared():
    """S4"""
    file = stored()
    for scan, code in (("pending", "scan_pending"), ("infected", "quarantined")):
        WorkspaceFile.objects.update(scan=scan)
        answer = person(factories.ada()).post(f"{V1}/files/{file.pk}/share", {}, content_type=JSON)
        assert code_of(answer) == code


# --- changing and ending (S9) ------------------------------------------------------------------------


def test_sharing_again_kills_the_old_link_and_its_files():
    """S9"""
    session = spoken("Look", "Here")
    file = stored(session=session)
    Message.objects.filter(session=session, kind="assistant").update(content=f"workspace://{file.pk}")
    first, second = share(session), share(session)
    assert status(f"/share/{first.token}") == 404
    assert status(f"/share/{first.token}/files/{file.pk}") == 404
    assert status(f"/share/{second.token}/files/{file.pk}") == 200
    assert SharedFile.objects.count() == 1


def test_expiry_password_and_author_line_can_be_changed_and_nothing_else():
    """S9"""
    session = spoken("Hi", "Ho")
    made = share(session)
    ada, path = person(factories.ada()), f"{V1}/sessions/{session.pk}/share"
    changed = ada.patch(path, {"expires_in": 60, "show_author": True}, content_type=JSON).json()
    assert (changed["token"], changed["author"]) == (str(made.token), "ada")
    assert changed["expires_at"]
    assert ada.patch(path, {"expires_in": None}, content_type=JSON).json()["expires_at"] is None
    assert ada.patch(path, {"password": "long enough"}, content_type=JSON).json()["has_password"]
    assert not ada.patch(path, {"password": None}, content_type=JSON).json()["has_password"]
    for wrong in ({"title": "x"}, {"expires_in": 366 * 86400}, {"password": "short"}, {"expires_in": 0}):
        assert ada.patch(path, wrong, content_type=JSON).status_code == 400
    assert person(factories.bob()).patch(path, {}, content_type=JSON).content == NOT_FOUND


def test_a_share_expires_by_the_databases_clock_and_is_emptied_later():
    """S9"""
    made = share(spoken("Hi", "Ho"))
    past = timezone.now() - timedelta(seconds=1)
    Share.objects.filter(pk=made.pk).update(expires_at=past)
    assert shared_page(made).status_code == 404
    assert sharing.purge_due_shares() == 0
    Share.objects.filter(pk=made.pk).update(expires_at=past - timedelta(days=30))
    assert sharing.purge_due_shares() == 1
    made.refresh_from_db()
    assert made.payload == {}
    listed = person(factories.ada()).get(f"{V1}/shares").json()
    assert listed["items"] == []


def test_shares_die_with_their_session_file_and_owner():
    """S2, S9, S12"""
    file = stored()
    of_file = sharing.publish_file(factories.ada().pk, file.pk, ShareTerms())
    session = spoken("Hi", "Ho")
    made = share(session)
    owner = factories.ada()
    owner.is_active = False
    owner.save()
    assert shared_page(made).status_code == shared_page(of_file).status_code == 404
    owner.is_active = True
    owner.save()
    assert shared_page(made).status_code == 200
    sessions.delete_session(owner.pk, session.pk)
    files.trash_file(owner.pk, file.pk)
    sessions.restore_session(owner.pk, session.pk)
    files.restore_file(owner.pk, file.pk)
    assert shared_page(made).status_code == shared_page(of_file).status_code == 404


def test_the_list_tells_views_and_state():
    """S9"""
    made = share(spoken("Hi", "Ho", title="Talk"))
    for _ in range(3):
        shared_page(made, REMOTE_ADDR="10.0.0.1")
    shared_page(made, REMOTE_ADDR="10.0.0.2")
    [item] = person(factories.ada()).get(f"{V1}/shares").json()["items"]
    assert (item["title"], item["views"], item["state"]) == ("Talk", 2, "live")
    assert item["last_viewed_at"]
    assert person(factories.bob()).get(f"{V1}/shares").json()["items"] == []


def test_staff_take_a_share_down_and_its_owner_is_notified(django_capture_on_commit_callbacks):
    """S9"""
    made = share(spoken("Hi", "Ho", title="Talk"))
    grace = person(factories.grace())
    changelist = "/admin/copilot/share/"
    with django_capture_on_commit_callbacks(execute=True):
        asked = grace.post(changelist, {"action": "take_down", "_selected_action": [str(made.pk)]})
        assert b"reason" in asked.content.lower()
        assert "errorlist" not in asked.content.decode()
        for wrong in ("  ", "a" * 501):
            selected = {"action": "take_down", "_selected_action": [str(made.pk)], "reason": wrong}
            refused = grace.post(changelist, selected)
            assert refused.status_code == 400
            assert "Enter a reason of 1 to 500 characters." in refused.content.decode()
        assert shared_page(made).status_code == 200
        grace.post(
            changelist,
            {
                "action": "take_down",
                "_selected_action": [str(made.pk)],
                "reason": "Leaks a name",
                "apply": "1",
            },
        )
    assert shared_page(made).status_code == 404
    [letter] = mail.outbox
    assert letter.to == ["ada@example.com"]
    assert "Leaks a name" in letter.body
    [item] = person(factories.ada()).get(f"{V1}/shares").json()["items"]
    assert (item["state"], item["reason"]) == ("taken_down", "Leaks a name")
    from django.contrib.admin.models import LogEntry

    assert LogEntry.objects.filter(object_id=str(made.pk), change_message__contains="Leaks a name").exists()


# --- the allow-list (S10) ----------------------------------------------------------------------------


def naming(*named, **asked):
    """A share of a conversation whose answer names these files."""
    session = asked.pop("session", None) or factories.session()
    turn = factories.turn(session, "succeeded")
    factories.message(session, content="Hi", turn=turn)
    text = " ".join(f"workspace://{getattr(file, 'pk', file)}" for file in named)
    factories.message(session, "assistant", content=text, turn=turn)
    return share(session, **asked)


def listed(made):
    return set(SharedFile.objects.filter(share=made).values_list("file", flat=True))


def test_another_users_file_is_not_listed_and_not_served():
    """A-S10.2"""
    bobs = files.store_file(factories.bob().pk, name="b.txt", content=b"secret", source="upload")
    made = naming(bobs)
    assert listed(made) == set()
    assert status(f"/share/{made.token}/files/{bobs.pk}") == 404
    assert "File not available" in shared_page(made).content.decode()


def test_a_file_named_only_in_a_tool_result_is_public_only_with_it():
    """A-S10.4"""
    session = spoken("Hi", "Ho")
    file = stored(session=session)
    turn = factories.turn(session, "succeeded")
    factories.message(
        session, "tool_call", call_id="c", data={"tool": "read_file", "arguments": {}}, turn=turn
    )
    factories.message(
        session,
        "tool_result",
        call_id="c",
        content=f'{{"uri": "workspace://{file.pk}"}}',
        data={"tool": "read_file", "success": True, "preview": "", "duration_ms": 1, "truncated": False},
        turn=turn,
    )
    assert listed(share(session)) == set()
    assert listed(share(session, include_tools=True)) == {file.pk}


def test_a_file_of_another_chat_is_shown_in_the_preview_and_not_public_unless_chosen():
    """A-S10.5"""
    session, other = factories.session(), factories.session()
    here, elsewhere, everywhere = (
        stored("a.txt", session=session),
        stored("b.txt", session=other),
        stored("c.txt"),
    )
    made = naming(here, elsewhere, everywhere, session=session)
    assert listed(made) == {here.pk}
    seen = (
        person(factories.ada())
        .post(f"{V1}/sessions/{session.pk}/share/preview", {}, content_type=JSON)
        .json()
    )
    assert [(file["name"], file["public"]) for file in seen["files"]] == [
        ("a.txt", True),
        ("b.txt", False),
        ("c.txt", False),
    ]
    assert listed(share(session, include_files=frozenset({elsewhere.pk}))) == {here.pk, elsewhere.pk}
    assert listed(share(session, exclude_files=frozenset({here.pk}))) == set()


def test_what_the_owner_attached_is_public_and_what_is_deleted_or_unchecked_is_not():
    """S10"""
    session = factories.session()
    kept, deleted, pending = stored("a.txt"), stored("b.txt"), stored("c.txt")
    factories.message(
        session,
        content="Look",
        turn=factories.turn(session, "succeeded"),
        attachments=[
            {"file_id": str(one.pk), "name": one.name, "type": one.mime, "size": 1}
            for one in (kept, deleted, pending)
        ],
    )
    files.trash_file(factories.ada().pk, deleted.pk)
    WorkspaceFile.objects.filter(pk=pending.pk).update(scan="pending")
    made = share(session)
    assert listed(made) == {kept.pk}
    assert "b.txt" not in everything_public(made)


def test_a_share_is_made_with_few_queries():
    """S8: whatever the number of messages and files."""
    session = spoken(*["word"] * 10)
    sharing.publish_session(session.owner_id, session.pk, ShareRequest(), ShareTerms())
    with CaptureQueriesContext(
        connection,
    ) as asked:
        sharing.publish_session(session.owner_id, session.pk, ShareRequest(), ShareTerms())
    assert len(asked) <= 16, [one["sql"] for one in asked]
