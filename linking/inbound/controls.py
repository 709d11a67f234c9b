"""Stop turns, decide approvals and answer questions from a chat, after checking who may.

Buttons carry random codes; `Button` rows say what a code means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from config.core.errors import Forbidden, NotFound
from config.core.json_values import parse_uuid
from copilot.chat import approval_decisions, questions, stop, turn_details
from copilot.chat.commands import DecideApproval
from copilot.chat.turn_details import TurnDetails
from linking import selectors
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount, Payer
from linking.errors import NotLinked
from linking.models import PlatformConversation

ApprovalDecision = Literal["approve", "reject"]


@dataclass(frozen=True, kw_only=True)
class Stopped:
    turn_id: str
    state: Literal["stopping", "dropped", "ended"]  # dropped: a queued message was withdrawn
    status: str  # of the turn


@dataclass(frozen=True, kw_only=True)
class Decided:
    approval_id: str
    state: str
    resumed: bool  # False while the turn waits for further decisions


def stop_turn(bot: BotAccount, turn_id: UUID, *, user_id: str, run_id: str | None = None) -> Stopped:
    """Stop a turn, or withdraw the message with this run_id that is queued behind it. Idempotent."""
    if (
        run_id is not None
        and (dropped := _withdraw_queued_message(bot, turn_id, user_id, run_id)) is not None
    ):
        return dropped
    turn = get_own_turn(bot, _resolve_turn(turn_id, run_id))
    _check_author_or_payer(bot, turn, user_id)
    if turn.has_ended:
        return Stopped(turn_id=str(turn.turn_id), state="ended", status=turn.status)
    stop.stop_session(turn.owner_id, turn.session_id, turn_id=turn.turn_id)
    current = turn_details.get_turn_details(turn.turn_id) or turn
    return Stopped(
        turn_id=str(turn.turn_id), state="ended" if current.has_ended else "stopping", status=current.status
    )


def _resolve_turn(turn_id: UUID, run_id: str | None) -> UUID:
    """Return the turn that the message with this run_id started, or `turn_id` if it has none yet."""
    running_turn = turn_details.get_turn_details(turn_id) if run_id is not None else None
    own = (
        turn_details.find_turn_of_run(running_turn.session_id, run_id)
        if running_turn is not None and run_id is not None
        else turn_id
    )
    return own if isinstance(own, UUID) else turn_id


def _withdraw_queued_message(bot: BotAccount, turn_id: UUID, user_id: str, run_id: str) -> Stopped | None:
    running_turn = turn_details.get_turn_details(turn_id)
    if running_turn is None:
        raise NotFound
    conversation = get_own_conversation(bot, running_turn.session_id)
    queued = [
        message
        for message in turn_details.list_pending_platform_messages(running_turn.session_id)
        if message.run_id == run_id
    ]
    if not queued:
        return None
    owner_id = conversation.session.owner_id
    if user_id != queued[0].speaker and not selectors.is_own_chat_account(
        owner_id, bot.platform, bot.bot_account, user_id
    ):
        raise _not_author_error()
    if not stop.drop_queued_messages(running_turn.session_id, None, queued[0].message_id):
        return None  # a turn has consumed it in the meantime
    return Stopped(turn_id=str(turn_id), state="dropped", status="cancelled")


def stop_conversation(session_id: UUID, payer: Payer, user_id: str) -> int:
    """Stop the running turn and withdraw queued messages; return how many there were.

    The running turn is stopped for its author and for the payer. In a server only the speaker's own queued messages
    are withdrawn.
    """
    count = 0
    for message in turn_details.list_pending_platform_messages(session_id):
        if payer.link is None or message.speaker == user_id:
            count += stop.drop_queued_messages(session_id, None, message.message_id)
    running = turn_details.get_unfinished_turn(session_id)
    if running is None or running.reply is None:
        return count
    if not payer.speaks and running.reply.speaker != user_id:
        return count
    stopped = stop.stop_session(payer.owner_id, session_id, turn_id=running.turn_id)
    return count + (stopped.state == "stopping")


def decide_approval(
    bot: BotAccount, approval_id: UUID, *, user_id: str, decision: ApprovalDecision, feedback: str = ""
) -> Decided:
    """Decide an approval as the payer. The first decision counts; a later one returns the state as it is."""
    turn = get_turn_of_approval(bot, approval_id)
    if not selectors.is_own_chat_account(turn.owner_id, bot.platform, bot.bot_account, user_id):
        raise Forbidden("Only the person who pays for this chat can decide.", code="not_the_payer")
    command = DecideApproval(approval_id=approval_id, decision=decision, feedback=feedback)
    decided = approval_decisions.decide_approvals(turn.owner_id, [command])
    return Decided(
        approval_id=str(approval_id), state=decided.approvals[0].state, resumed=bool(decided.resumed)
    )


def answer_question(
    bot: BotAccount, question_id: UUID, *, user_id: str, text: str | None = None, choice: str | None = None
) -> None:
    turn = get_turn_of_question(bot, question_id)
    _check_author_or_payer(bot, turn, user_id)
    if not selectors.is_account_active(turn.owner_id):
        raise NotLinked
    questions.record_answer(turn.owner_id, question_id, text=text, choice=choice)


def _check_author_or_payer(bot: BotAccount, turn: TurnDetails, user_id: str) -> None:
    is_author = turn.reply is not None and turn.reply.speaker == user_id
    if not is_author and not selectors.is_own_chat_account(
        turn.owner_id, bot.platform, bot.bot_account, user_id
    ):
        raise _not_author_error()


def _not_author_error() -> Forbidden:
    return Forbidden(
        "Only the author of the message or the person who pays for this chat can do this.", code="not_yours"
    )


def press_button(bot: BotAccount, code: str, *, user_id: str) -> Decided | Literal["answered"]:
    button = conversations.find_button(bot, code)
    if button is None:
        raise NotFound
    if button.kind == "question":
        answer_question(bot, button.subject_id, user_id=user_id, choice=button.answer)
        conversations.delete_buttons(button.subject_id)
        return "answered"
    decision: ApprovalDecision = "approve" if button.answer == "approve" else "reject"
    decided = decide_approval(bot, button.subject_id, user_id=user_id, decision=decision)
    conversations.delete_buttons(button.subject_id)
    return decided


# --- Turns and conversations that a bot may see ---


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
