"""What a bot account may look at: turns and sessions of its own conversations, and nothing else exists (L2)."""

from __future__ import annotations

from uuid import UUID

from copilot import turns
from copilot.commands import as_uuid
from copilot.errors import NotFound
from copilot.turns import TurnStanding
from linking import conversations
from linking.conversations import Bot
from linking.models import PlatformConversation


def turn_seen(bot: Bot, turn_id: UUID) -> TurnStanding:
    return _own(bot, turns.standing(turn_id))


def turn_of_approval(bot: Bot, approval_id: UUID) -> TurnStanding:
    return _own(bot, turns.standing_of_approval(approval_id))


def turn_of_question(bot: Bot, question_id: UUID) -> TurnStanding:
    return _own(bot, turns.standing_of_question(question_id))


def session_seen(bot: Bot, session_id: UUID) -> PlatformConversation:
    found = conversations.in_session(bot, session_id)
    if found is None:
        raise NotFound
    return found


def _own(bot: Bot, standing: TurnStanding | None) -> TurnStanding:
    """Somebody else's, another platform's, the web's, a deleted one's and an unknown one's look the same (A-L2.3)."""
    if standing is None or standing.is_gone or not is_own(bot, standing):
        raise NotFound
    return standing


def is_own(bot: Bot, standing: TurnStanding) -> bool:
    if standing.reply is None or standing.reply.platform != bot.platform:
        return False
    conversation_id = as_uuid(standing.reply.conversation_id)
    return conversation_id is not None and conversations.is_of(bot, conversation_id)
