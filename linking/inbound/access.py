"""Look up turns and conversations on behalf of a bot account, which may see only its own."""

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
    conversation = conversations.find_conversation_in_session(bot, session_id)
    if conversation is None:
        raise NotFound
    return conversation


def _require_own(bot: BotAccount, turn: TurnDetails | None) -> TurnDetails:
    """Raise the same NotFound for unknown, deleted and foreign turns, so that a bot cannot probe for them."""
    if turn is None or turn.is_session_deleted or not is_own_turn(bot, turn):
        raise NotFound
    return turn


def is_own_turn(bot: BotAccount, turn: TurnDetails) -> bool:
    if turn.reply is None or turn.reply.platform != bot.platform:
        return False
    conversation_id = parse_uuid(turn.reply.conversation_id)
    return conversation_id is not None and conversations.owns_conversation(bot, conversation_id)
