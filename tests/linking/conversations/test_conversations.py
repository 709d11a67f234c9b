"""One conversation per place: begun once, left by /new, and never somebody else's (L9, L15)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError
from django.utils import timezone

from config.core.errors import Conflict
from copilot.chat import stop
from copilot.models import Session
from linking.conversations import idempotency
from linking.conversations import services as conversations
from linking.conversations.services import ConversationPlace, OpenConversation, Payer
from linking.errors import NotLinked
from linking.links import services as links
from linking.models import IdempotencyKey, PlatformConversation, PlatformLink, PlatformUserLink
from tests.support import factories
from tests.support.turn_engine import together

DM = ConversationPlace(platform="telegram", bot_account="bot", scope="dm", container_id="dm-ada")
CHANNEL = ConversationPlace(
    platform="discord", bot_account="bot", scope="server", container_id="general", server_id="guild"
)


@pytest.fixture
def linked(transactional_db) -> None:
    PlatformUserLink.objects.create(
        platform="telegram", bot_account="bot", platform_user_id="ada-t", user=factories.ada()
    )
    PlatformUserLink.objects.create(
        platform="discord", bot_account="bot", platform_user_id="ada-d", user=factories.ada()
    )
    PlatformLink.objects.create(
        platform="discord", bot_account="bot", server_id="guild", owner=factories.ada()
    )


def at(where: ConversationPlace, who: str = "ada-d") -> OpenConversation:
    return conversations.get_or_open_conversation(where, conversations.find_payer(where, who))


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_ten_first_messages_at_once_are_one_session(linked, rounds):
    """A-L15.1: the place has one open conversation, and no unused session is left over"""
    payer = conversations.find_payer(CHANNEL, "bob-d")
    for number in range(rounds):
        place = replace(CHANNEL, container_id=f"channel-{number}")
        opened = together(*[lambda place=place: conversations.get_or_open_conversation(place, payer)] * 10)
        assert len(set(opened)) == 1
        assert isinstance(opened[0], OpenConversation)
    assert Session.objects.count() == PlatformConversation.objects.count() == rounds
    assert set(Session.objects.values_list("platform", flat=True)) == {"discord"}


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_new_closes_the_place_and_concurrent_messages_open_one_conversation(linked, rounds):
    """A-L15.2: later messages are in the new session, and there is exactly one; who writes meanwhile is in one that was"""
    payer = conversations.find_payer(DM, "ada-t")
    for _ in range(rounds):
        before = at(DM, "ada-t")
        renewing, writing = (
            [lambda: conversations.open_new_conversation(DM, payer)] * 5,
            [lambda: at(DM, "ada-t")] * 3,
        )
        outcomes = together(*renewing, *writing)
        fresh, written = outcomes[:5], outcomes[5:]
        assert at(DM, "ada-t") in fresh
        assert before not in fresh
        assert {*written} <= {*fresh, before}
        assert PlatformConversation.objects.filter(closed_at=None).count() == 1


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_message_that_comes_as_its_server_is_unlinked_leaves_no_open_place(linked, rounds):
    """L8: it is in the closed conversation, or the answer is that nothing is linked; another owner gets a new conversation"""
    for number in range(rounds):
        link = PlatformLink.objects.create(
            platform="discord", bot_account="bot", server_id=f"guild-{number}", owner=factories.ada()
        )
        place = replace(CHANNEL, server_id=link.server_id, container_id=f"channel-{number}")
        gone, *opened = together(
            partial(links.revoke_server_link, link.owner_id, link.pk), *[partial(at, place, "bob-d")] * 4
        )
        assert gone is None
        assert all(isinstance(one, OpenConversation | NotLinked) for one in opened), opened
        assert not PlatformConversation.objects.filter(
            container_id=place.container_id, closed_at=None
        ).exists()


def test_places_are_distinguished_by_bot_thread_and_container(linked):
    """A-L15.1: the key is platform, bot account, container and thread"""
    places = [
        CHANNEL,
        replace(CHANNEL, thread_id="t"),
        replace(CHANNEL, container_id="random"),
        replace(CHANNEL, bot_account="other"),
    ]
    PlatformLink.objects.create(
        platform="discord", bot_account="other", server_id="guild", owner=factories.ada()
    )
    assert len({at(place).session_id for place in places}) == 4
    assert at(CHANNEL) == at(CHANNEL, "bob-d")


def test_a_session_deleted_on_the_web_is_not_talked_in_again(linked):
    """A-L15.1: the next message opens a new one"""
    before = at(DM, "ada-t")
    stop.delete_session_and_stop(factories.ada().pk, before.session_id)
    assert at(DM, "ada-t").session_id != before.session_id


def test_another_owner_gets_another_session(linked):
    """A-L8.2: a later owner of a server never talks in the former owner's session"""
    before = at(CHANNEL)
    PlatformConversation.objects.update(closed_at=timezone.now())
    PlatformLink.objects.all().delete()
    PlatformLink.objects.create(
        platform="discord", bot_account="bot", server_id="guild", owner=factories.bob()
    )
    after = at(CHANNEL)
    assert Session.objects.get(pk=after.session_id).owner == factories.bob()
    assert after.session_id != before.session_id


@pytest.mark.parametrize(("where", "who"), [(replace(DM, platform="discord"), "bob-d"), (DM, "ada-d")])
def test_a_direct_message_is_its_senders_alone(linked, where, who):
    """A-L9.1, A-L9.2: owning a server says nothing of direct messages, and there is no way between the tables"""
    with pytest.raises(NotLinked):
        conversations.find_payer(where, who)
    with pytest.raises(NotLinked):
        conversations.find_payer(replace(CHANNEL, server_id="elsewhere"), "ada-d")


def test_a_shut_account_has_no_links_and_only_the_payer_speaks_as_one(linked):
    """A-L9.3: between two messages the account went; who speaks is told by his own link on that platform"""
    assert conversations.find_payer(CHANNEL, "ada-d").speaks
    assert not conversations.find_payer(CHANNEL, "bob-d").speaks
    ada = factories.ada()
    ada.is_active = False
    ada.save()
    for where, who in ((CHANNEL, "ada-d"), (DM, "ada-t")):
        with pytest.raises(NotLinked):
            conversations.find_payer(where, who)


def test_a_place_of_the_wrong_scope_is_refused_by_the_table_itself(linked):
    """A-L15.1: an open conversation has the link of its scope"""
    payer = conversations.find_payer(CHANNEL, "ada-d")
    assert isinstance(payer, Payer)
    with pytest.raises(NotLinked) as refused:
        conversations.get_or_open_conversation(replace(DM, platform="discord"), payer)
    assert isinstance(refused.value.__cause__, IntegrityError)
    assert not Session.objects.exists()


# --- a key counts once (L12) -------------------------------------------------------------------------


def claim(digest: str = "d") -> idempotency.ClaimedKey | idempotency.RecordedAnswer:
    return idempotency.claim_key("telegram", "bot", "key", digest)


def test_a_key_that_was_let_go_is_free_and_an_answered_one_is_not(transactional_db):
    """A-L12.1: the first answer is the only one; a refusal leaves the key unused"""
    first = claim()
    assert isinstance(first, idempotency.ClaimedKey)
    idempotency.release_key(first)
    again = claim()
    assert isinstance(again, idempotency.ClaimedKey)
    idempotency.record_answer(again, {"state": "started"})
    idempotency.release_key(again)
    assert claim() == idempotency.RecordedAnswer(answer={"state": "started"})


def test_a_key_whose_holder_died_is_taken_over_as_such(transactional_db, monkeypatch):
    """A-L12.1: in flight for long means 409, abandoned for long means that somebody else may"""
    monkeypatch.setattr("linking.conversations.idempotency.CLAIM_WAIT_SECONDS", 0.0)
    claim()
    with pytest.raises(Conflict, match="still running"):
        claim()
    with pytest.raises(Conflict, match="another request"):
        claim("other")
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(seconds=16))
    taken = together(claim, claim, claim)
    assert [one.abandoned for one in taken if isinstance(one, idempotency.ClaimedKey)] == [True]
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert idempotency.purge_idempotency_keys() == 1
