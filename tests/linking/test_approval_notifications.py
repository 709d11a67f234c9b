"""A call that waits for a person is announced where else that person can be reached (A11.12)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from uuid import UUID

import pytest
from django.core import mail
from django.db.models.functions import Now

from copilot.chat import approvals
from copilot.chat.approvals import ApprovalCandidate
from copilot.chat.turn_context import ReplyAddress
from copilot.models import Approval, Session, Turn
from linking.models import PlatformConversation, PlatformUserLink
from linking.outbound import notices, worker
from linking.platforms import registry, scripted
from linking.platforms.base import ChatUnreachable
from tests.support import factories
from tests.support.platform_chats import ScriptedChat, chatting
from tests.support.timeouts import PATIENCE_SECONDS

BUTTON = "Open the chat"


@pytest.fixture
def chat(rig, settings, monkeypatch):
    with chatting(settings, monkeypatch):
        yield ScriptedChat()


def connected(chat: ScriptedChat) -> PlatformConversation:
    """Ada has talked to our bot in a direct message."""
    link = PlatformUserLink.objects.create(
        platform="scripted",
        bot_account=registry.build_adapter("scripted").bot_account,
        platform_user_id=chat.user,
        user=factories.ada(),
        display_name="Ada",
    )
    return PlatformConversation.objects.create(
        platform="scripted",
        bot_account=registry.build_adapter("scripted").bot_account,
        container_id=chat.container,
        scope="dm",
        user_link=link,
        session=factories.session(),
    )


def waiting(session: Session, *, seconds: int = 400, **fields: object) -> Turn:
    """A turn that has waited this long for somebody to decide about a call."""
    turn = factories.turn(session, Turn.Status.RUNNING)
    Turn.objects.filter(pk=turn.pk).update(**fields)
    approvals.request_approvals(
        turn.pk,
        turn.fence,
        [ApprovalCandidate(call_id="c", tool="delete_file", arguments={"path": "x"}, reason="!")],
    )
    Approval.objects.filter(turn=turn).update(created_at=Now() - timedelta(seconds=seconds))
    return turn


def announce(turn_id: UUID) -> None:
    notices.notify_waiting_turn(turn_id)
    worker.wait_until_sent(PATIENCE_SECONDS)


def test_a_request_that_waits_is_announced_in_a_direct_message_with_the_way_to_it(chat):
    """A11.12: which tool, in which chat, and nothing of its arguments; once"""
    connected(chat)
    session = factories.session(title="Tidying up")
    waiting(session)
    for turn_id in (
        *notices.claim_turns_to_notify(),
        *notices.claim_turns_to_notify(),
    ):
        announce(turn_id)
    [shown] = chat.shown()
    assert "Delete file" in shown.text
    assert "Tidying up" in shown.text
    [(label, url)] = shown.buttons
    assert (label, str(session.pk) in url) == (BUTTON, True)
    assert mail.outbox == []


def test_who_has_no_other_channel_gets_a_mail(chat):
    """A11.12"""
    session = factories.session(title="Tidying up")
    waiting(session)
    for turn_id in notices.claim_turns_to_notify():
        announce(turn_id)
    [sent] = mail.outbox
    assert sent.to == [session.owner.email]
    assert "Delete file" in sent.body
    assert str(session.pk) in sent.body


def test_who_cannot_be_reached_there_gets_a_mail(chat):
    """A11.12: the bot was blocked, or the platform is away for long"""
    connected(chat)
    waiting(factories.session())
    scripted.SHARED_WORLD.failures.append(ChatUnreachable("blocked"))
    for turn_id in notices.claim_turns_to_notify():
        announce(turn_id)
    assert (chat.shown(), len(mail.outbox)) == ([], 1)


@pytest.mark.parametrize("seconds", [200, 3_600])
def test_people_who_may_be_reading_or_were_notified_already_are_not_notified(chat, settings, seconds):
    """A11.12: some minutes are given, and what is old is not told again after an outage of the counts"""
    waiting(factories.session(), seconds=seconds)
    assert notices.claim_turns_to_notify() == []
    settings.APPROVAL_ANNOUNCE_SECONDS = 0
    Approval.objects.update(created_at=Now() - timedelta(seconds=400))
    assert notices.claim_turns_to_notify() == []


def test_what_was_decided_meanwhile_is_not_announced(chat):
    connected(chat)
    turn = waiting(factories.session())
    [turn_id] = notices.claim_turns_to_notify()
    approvals.close_approvals(turn.pk, "cancelled")
    announce(turn_id)
    assert (chat.shown(), mail.outbox) == ([], [])


def test_the_chat_that_shows_the_card_is_not_told_of_it(chat):
    """A11.12: other channels"""
    place = connected(chat)
    reply = ReplyAddress(
        platform="scripted",
        conversation_id=str(place.pk),
        container=chat.container,
        of_payer=True,
        async_delivery=True,
        interactive=True,
    )
    turn = waiting(place.session, inbound_context={"reply": asdict(reply)})
    notices.notify_waiting_turn(turn.pk)
    assert (chat.shown(), mail.outbox) == ([], [])
