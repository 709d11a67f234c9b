"""Stop, approve and answer from a chat: who may, and what became of it (L14, A11.4, A12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from config.core.errors import Forbidden, NotFound
from copilot.chat import approval_decisions, stop, submission, turn_details
from copilot.chat.commands import DecideApproval
from copilot.chat.turn_details import TurnDetails
from linking import selectors
from linking.conversations import buttons
from linking.conversations.services import BotAccount, Payer
from linking.errors import NotLinked
from linking.inbound import access

ApprovalDecision = Literal["approve", "reject"]


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """`state`: the turn is being stopped, a message left the queue, or it had ended before; `status` is the turn's."""

    turn_id: str
    state: Literal["stopping", "dropped", "ended"]
    status: str


@dataclass(frozen=True, kw_only=True)
class Decided:
    approval_id: str
    state: str
    resumed: bool  # whether the turn goes on with it, or waits for further decisions


def stop_turn(bot: BotAccount, turn_id: UUID, *, user_id: str, run_id: str | None = None) -> Stopped:
    """The caller's turn, or the message with this run_id that waits behind it; once is as good as twice (A-L14.3)."""
    if (
        run_id is not None
        and (dropped := _withdraw_queued_message(bot, turn_id, user_id, run_id)) is not None
    ):
        return dropped
    seen = access.get_own_turn(bot, _resolve_turn(turn_id, run_id))
    _check_author_or_payer(bot, seen, user_id)
    if seen.has_ended:
        return Stopped(turn_id=str(seen.turn_id), state="ended", status=seen.status)
    stop.stop_session(seen.owner_id, seen.session_id, turn_id=seen.turn_id)
    now = turn_details.get_turn_details(seen.turn_id) or seen
    return Stopped(
        turn_id=str(seen.turn_id), state="ended" if now.has_ended else "stopping", status=now.status
    )


def _resolve_turn(turn_id: UUID, run_id: str | None) -> UUID:
    """The message's own turn, once it has one."""
    behind = turn_details.get_turn_details(turn_id) if run_id is not None else None
    own = (
        turn_details.find_turn_of_run(behind.session_id, run_id)
        if behind is not None and run_id is not None
        else turn_id
    )
    return own if isinstance(own, UUID) else turn_id


def _withdraw_queued_message(bot: BotAccount, turn_id: UUID, user_id: str, run_id: str) -> Stopped | None:
    behind = turn_details.get_turn_details(turn_id)
    if behind is None:
        raise NotFound
    conversation = access.get_own_conversation(bot, behind.session_id)
    waiting = [
        one for one in turn_details.list_pending_platform_messages(behind.session_id) if one.run_id == run_id
    ]
    if not waiting:
        return None
    owner_id = conversation.session.owner_id
    if user_id != waiting[0].speaker and not selectors.is_own_chat_account(
        owner_id, bot.platform, bot.bot_account, user_id
    ):
        raise _not_author_error()
    if not stop.drop_queued_messages(behind.session_id, None, waiting[0].message_id):
        return None  # a turn has taken it just now
    return Stopped(turn_id=str(turn_id), state="dropped", status="cancelled")


def stop_conversation(session_id: UUID, payer: Payer, user_id: str) -> int:
    """`/stop`: what runs, if the speaker asked or pays for it, and what waits; in a server the speaker's own alone,
    whoever that is. How much there was to stop (L14)."""
    count = 0
    for one in turn_details.list_pending_platform_messages(session_id):
        if payer.link is None or one.speaker == user_id:
            count += stop.drop_queued_messages(session_id, None, one.message_id)
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
    """The payer alone decides; the first decision counts, a later one is told the state as it is (A-L14.1)."""
    seen = access.get_turn_of_approval(bot, approval_id)
    if not selectors.is_own_chat_account(seen.owner_id, bot.platform, bot.bot_account, user_id):
        raise Forbidden("Only the person who pays for this chat decides about it.", code="not_the_payer")
    given = DecideApproval(approval_id=approval_id, decision=decision, feedback=feedback)
    decided = approval_decisions.decide_approvals(seen.owner_id, [given])
    return Decided(
        approval_id=str(approval_id), state=decided.approvals[0].state, resumed=bool(decided.resumed)
    )


def answer_question(
    bot: BotAccount, question_id: UUID, *, user_id: str, text: str | None = None, choice: str | None = None
) -> None:
    """By whoever was asked: the one whose message started the turn, or the payer."""
    seen = access.get_turn_of_question(bot, question_id)
    _check_author_or_payer(bot, seen, user_id)
    if not selectors.is_account_active(seen.owner_id):
        raise NotLinked
    submission.answer_question(seen.owner_id, question_id, text=text, choice=choice)


def _check_author_or_payer(bot: BotAccount, seen: TurnDetails, user_id: str) -> None:
    author = seen.reply is not None and seen.reply.speaker == user_id
    if not author and not selectors.is_own_chat_account(
        seen.owner_id, bot.platform, bot.bot_account, user_id
    ):
        raise _not_author_error()


def _not_author_error() -> Forbidden:
    return Forbidden("Only who wrote the message, or pays for this chat, may do this.", code="not_yours")


# MERGED inbound.buttons: Buttons in a chat bear random codes; what one means is kept here, and who presses it is asked again (L14).


def press_button(bot: BotAccount, code: str, *, user_id: str) -> Decided | Literal["answered"]:
    """Raises what deciding or answering would: 403 for others, 409 with the state when it is over."""
    button = buttons.find_button(bot, code)
    if button is None:
        raise NotFound
    if button.kind == "question":
        answer_question(bot, button.subject_id, user_id=user_id, choice=button.answer)
        buttons.delete_buttons(button.subject_id)
        return "answered"
    decision: ApprovalDecision = "approve" if button.answer == "approve" else "reject"
    decided = decide_approval(bot, button.subject_id, user_id=user_id, decision=decision)
    buttons.delete_buttons(button.subject_id)
    return decided
