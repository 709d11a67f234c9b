"""A reader continues a shared conversation in their own account, if its owner allows that (S11, S16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copilot.files import quotas
from copilot.files import services as files
from copilot.models import Message, Session, Share, Turn, WorkspaceFile
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person
from tests.support.shares import spoken, stored, stranger

pytestmark = pytest.mark.django_db


def published(session: Session, *, password: str = "", allowed: bool = True, **asked: object) -> Share:
    wanted = replace(ShareRequest(allow_continue=allowed), **asked)
    return sharing.publish_session(session.owner_id, session.pk, wanted, ShareTerms(password=password))


def path(share: Share) -> str:
    return f"/share/{share.token}/continue"


def test_a_reader_continues_with_a_copy_of_what_is_public() -> None:
    """S11, S16: new ids, own files, nothing runs, and the owner's chat is untouched"""
    file = stored("plan.txt", b"the plan")
    session = spoken("Where is it?", f"Here: workspace://{file.pk}")
    share = published(session, include_files=frozenset({file.pk}))
    bob = factories.user("bob")
    answer = person(bob).post(path(share))
    copy = Session.objects.get(owner=bob)
    assert (answer.status_code, answer["Location"]) == (303, f"/chat/{copy.pk}/")
    mine = WorkspaceFile.objects.get(owner=bob)
    with files.open_file(mine) as content:
        assert content.read() == b"the plan"
    said = list(Message.objects.filter(session=copy).order_by("sequence").values_list("kind", "content"))
    assert said == [("user", "Where is it?"), ("assistant", f"Here: workspace://{mine.pk}")]
    assert copy.imported
    assert not Turn.objects.filter(session=copy, ended_at=None).exists()


def test_what_is_not_public_does_not_come_along() -> None:
    """S8, S11: a file that is not on the list is a word, a step has its name only, and thoughts stay"""
    secret = stored("secret.txt", b"secret")
    session = spoken("Go.", f"See workspace://{secret.pk}/secret.txt")
    factories.message(session, "reasoning", content="a thought")
    factories.message(
        session, "tool_call", call_id="c", data={"tool": "bash_exec", "arguments": {"command": "a secret"}}
    )
    factories.message(session, "tool_result", content="more secret", call_id="c", data={"success": True})
    bob = factories.user("bob")
    assert person(bob).post(path(published(session))).status_code == 303
    rows = Message.objects.filter(session__owner=bob).order_by("sequence")
    assert [row.kind for row in rows] == ["user", "assistant", "tool_call", "tool_result"]
    told = " ".join(f"{row.content} {row.data}" for row in rows)
    assert "[missing file: secret.txt]" in told
    assert "a thought" not in told
    assert "a secret" not in told
    assert "more secret" not in told
    assert not WorkspaceFile.objects.filter(owner=bob).exists()


def test_a_second_click_leads_to_the_first_copy() -> None:
    """S16"""
    share, bob = published(spoken("Hello?", "Hello.")), factories.user("bob")
    first, second = (person(bob).post(path(share)) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert Session.objects.filter(owner=bob).count() == 1


def test_the_owner_decides_and_says_so_over_rest() -> None:
    """S11: off unless the owner allows it; the endpoint then does not exist"""
    session = spoken("Hello?", "Hello.")
    ada, bob = person(factories.ada()), person(factories.user("bob"))
    for body, there in (({}, False), ({"allow_continue": True}, True)):
        made = ada.post(f"{V1}/sessions/{session.pk}/share", body, content_type=JSON)
        page = stranger().get(f"/share/{made.json()['token']}").content.decode()
        assert ("Continue in my account" in page) is there
        assert (bob.get(f"/share/{made.json()['token']}/continue").status_code == 200) is there


def test_a_locked_revoked_or_file_share_cannot_be_continued() -> None:
    """S9, S11: the same answer as for a token that never was"""
    bob = person(factories.user("bob"))
    locked = published(spoken("Hello?", "Hello."), password="open sesame")
    dead = published(spoken("Hello?", "Hello."))
    sharing.revoke_share(dead)
    file = sharing.publish_file(factories.ada().pk, stored().pk, ShareTerms())
    assert {bob.post(path(share)).status_code for share in (locked, dead, file)} == {404}
    bob.post(f"/share/{locked.token}/unlock", {"password": "open sesame"})
    assert bob.post(path(locked)).status_code == 303


def test_a_visitor_signs_in_first_and_a_share_looks_the_same_to_all() -> None:
    """S11: A-S11.3 holds, because the page only has a link, and what differs comes after it"""
    share = published(spoken("Hello?", "Hello."))
    answer = stranger().get(path(share))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/?next=/share/")
    pages = [one.get(f"/share/{share.token}").content for one in (stranger(), person(factories.ada()))]
    assert pages[0] == pages[1]


def test_a_full_account_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S11: nothing is kept of it"""
    file = stored("plan.txt", b"the plan")
    share = published(spoken("Hello?", f"workspace://{file.pk}"), include_files=frozenset({file.pk}))
    small = {tier: replace(quota, total_bytes=1) for tier, quota in quotas.PLAN_QUOTAS.items()}
    monkeypatch.setattr(quotas, "PLAN_QUOTAS", small)
    bob = factories.user("bob")
    answer = person(bob).post(path(share))
    assert answer.status_code == 409
    assert 'role="alert"' in answer.content.decode()
    assert not Session.objects.filter(owner=bob).exists()
