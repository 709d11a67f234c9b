"""What a bot account may look at: turns and sessions of its own conversations, and nothing else exists (L2)."""

from __future__ import annotations

from uuid import UUID

from config.core.errors import NotFound
from config.core.validation import parse_uuid
from copilot.chat import turn_details
from copilot.chat.turn_details import TurnDetails
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount
from linking.models import PlatformConversation


def get_own_turn(bot: BotAccount, turn_id: UUID) -> TurnDetails:
    return _require_own(bot, turn_details.get_turn_details(turn_id))


def get_turn_of_approval(bot: BotAccount, approval_id: UUID) -> TurnDetails:
    return _require_own(bot, turn_details.get_turn_of_approval(approval_id))


def get_turn_of_question(bot: BotAccount, question_id: UUID) -> TurnDetails:
    return _require_own(bot, turn_details.get_turn_of_question(question_id))


def get_own_conversation(bot: BotAccount, session_id: UUID) -> PlatformConversation:
    found = conversations.find_conversation_in_session(bot, session_id)
    if found is None:
        raise NotFound
    return found


def _require_own(bot: BotAccount, standing: TurnDetails | None) -> TurnDetails:
    """Somebody else's, another platform's, the web's, a deleted one's and an unknown one's look the same (A-L2.3)."""
    if standing is None or standing.is_session_deleted or not is_own_turn(bot, standing):
        raise NotFound
    return standing


def is_own_turn(bot: BotAccount, standing: TurnDetails) -> bool:
    if standing.reply is None or standing.reply.platform != bot.platform:
        return False
    conversation_id = parse_uuid(standing.reply.conversation_id)
    return conversation_id is not None and conversations.owns_conversation(bot, conversation_id)
