"""Sharing, revoking and deleting at the same moment: a share is either complete or gone (S8, S9)."""

from __future__ import annotations

import pytest

from copilot.chat import sessions
from copilot.files import services as files
from copilot.models import Message, Share, SharedFile
from copilot.sharing import access
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.shares import spoken, status, stored
from tests.support.turn_engine import together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session():
    """A conversation that shows one file."""
    made = spoken("Hi", "Ho")
    file = stored(session=made)
    Message.objects.filter(session=made, kind="assistant").update(content=f"workspace://{file.pk}")
    return made


def publishing(session):
    return lambda: sharing.publish_session(session.owner_id, session.pk, ShareRequest(), ShareTerms())


def standing(session):
    return list(Share.objects.filter(session=session, revoked_at=None))


@rounds(1, 50)
def test_of_ten_shares_at_once_one_is_created(session, rounds, monkeypatch):
    """A-S8.4"""
    monkeypatch.setitem(access.REQUESTS_PER_MINUTE, "page", 10_000)
    for _ in range(rounds):
        answers = together(*[publishing(session)] * 10)
        assert len({answer.token for answer in answers}) == 10
        [kept] = standing(session)
        assert set(SharedFile.objects.values_list("share", flat=True)) == {kept.pk}
        reached = {one.token: status(f"/share/{one.token}") for one in answers}
        assert sorted(reached.values()) == [200] + [404] * 9
        assert reached[kept.token] == 200


@rounds(12, 100)
def test_a_share_made_and_ended_together_leaves_all_or_nothing(session, rounds):
    """A-S9.1: a hundred times"""
    for _ in range(rounds):
        together(publishing(session), lambda: sharing.revoke_session_share(session.owner_id, session.pk))
        kept = standing(session)
        listed = SharedFile.objects.filter(share__session=session)
        assert len(kept) <= 1
        assert {one.share_id for one in listed} == {one.pk for one in kept}
        assert listed.count() == len(kept)


@rounds(8, 50)
def test_a_session_deleted_while_it_is_shared_is_not_shared(session, rounds):
    """S2, S8"""
    for _ in range(rounds):
        together(publishing(session), lambda: sessions.delete_session(session.owner_id, session.pk))
        assert standing(session) == []
        sessions.restore_session(session.owner_id, session.pk)


@rounds(8, 50)
def test_a_file_deleted_while_it_is_shared_is_not_public_even_when_restored(session, rounds):
    """A-S12.4: also at the same moment"""
    owner, file = session.owner_id, session.files.get()
    for _ in range(rounds):
        together(
            publishing(session),
            lambda: files.trash_file(owner, file.pk),
            lambda: sharing.publish_file(owner, file.pk, ShareTerms()),
        )
        assert not SharedFile.objects.filter(file=file).exists()
        files.restore_file(owner, file.pk)
        assert not SharedFile.objects.filter(file=file).exists()
        assert not Share.objects.filter(file=file, revoked_at=None).exists()
    assert factories.ada().pk == owner
