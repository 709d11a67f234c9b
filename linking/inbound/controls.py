"""Stop, approve and answer from a chat: who may, and what became of it (L14, A11.4, A12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from copilot import dispatch, turns
from copilot.commands import Decide
from copilot.errors import Forbidden, NotFound
from copilot.turns import TurnStanding
from linking import queries
from linking.conversations import Bot, Payer
from linking.errors import NotLinked
from linking.inbound import seeing

Decision = Literal["approve", "reject"]


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


def stop(bot: Bot, turn_id: UUID, *, user_id: str, run_id: str | None = None) -> Stopped:
    """The caller's turn, or the message with this run_id that waits behind it; once is as good as twice (A-L14.3)."""
    if run_id is not None and (dropped := _drop(bot, turn_id, user_id, run_id)) is not None:
        return dropped
    seen = seeing.turn_seen(bot, _turn_of(turn_id, run_id))
    _check_author_or_payer(bot, seen, user_id)
    if seen.is_over:
        return Stopped(turn_id=str(seen.turn_id), state="ended", status=seen.status)
    dispatch.stop(seen.owner_id, seen.session_id, turn_id=seen.turn_id)
    now = turns.standing(seen.turn_id) or seen
    return Stopped(turn_id=str(seen.turn_id), state="ended" if now.is_over else "stopping", status=now.status)


def _turn_of(turn_id: UUID, run_id: str | None) -> UUID:
    """The message's own turn, once it has one."""
    behind = turns.standing(turn_id) if run_id is not None else None
    own = turns.of_run(behind.session_id, run_id) if behind is not None and run_id is not None else turn_id
    return own if isinstance(own, UUID) else turn_id


def _drop(bot: Bot, turn_id: UUID, user_id: str, run_id: str) -> Stopped | None:
    behind = turns.standing(turn_id)
    if behind is None:
        raise NotFound
    conversation = seeing.session_seen(bot, behind.session_id)
    waiting = [one for one in turns.waiting_in(behind.session_id) if one.run_id == run_id]
    if not waiting:
        return None
    owner_id = conversation.session.owner_id
    if user_id != waiting[0].speaker and not queries.is_identity_of(
        owner_id, bot.platform, bot.bot_account, user_id
    ):
        raise _not_theirs()
    if not dispatch.drop_queue(behind.session_id, None, waiting[0].message_id):
        return None  # a turn has taken it just now
    return Stopped(turn_id=str(turn_id), state="dropped", status="cancelled")


def stop_chat(session_id: UUID, payer: Payer, user_id: str) -> int:
    """`/stop`: what runs, if the speaker asked or pays for it, and what waits; in a server the speaker's own alone,
    whoever that is. How much there was to stop (L14)."""
    count = 0
    for one in turns.waiting_in(session_id):
        if payer.link is None or one.speaker == user_id:
            count += dispatch.drop_queue(session_id, None, one.message_id)
    running = turns.unfinished(session_id)
    if running is None or running.reply is None:
        return count
    if not payer.speaks and running.reply.speaker != user_id:
        return count
    stopped = dispatch.stop(payer.owner_id, session_id, turn_id=running.turn_id)
    return count + (stopped.state == "stopping")


def decide(bot: Bot, approval_id: UUID, *, user_id: str, decision: Decision, feedback: str = "") -> Decided:
    """The payer alone decides; the first decision counts, a later one is told the state as it is (A-L14.1)."""
    seen = seeing.turn_of_approval(bot, approval_id)
    if not queries.is_identity_of(seen.owner_id, bot.platform, bot.bot_account, user_id):
        raise Forbidden("Only the person who pays for this chat decides about it.", code="not_the_payer")
    given = Decide(approval_id=approval_id, decision=decision, feedback=feedback)
    decided = dispatch.decide(seen.owner_id, [given])
    return Decided(
        approval_id=str(approval_id), state=decided.approvals[0].state, resumed=bool(decided.resumed)
    )


def answer(
    bot: Bot, question_id: UUID, *, user_id: str, text: str | None = None, choice: str | None = None
) -> None:
    """By whoever was asked: the one whose message started the turn, or the payer."""
    seen = seeing.turn_of_question(bot, question_id)
    _check_author_or_payer(bot, seen, user_id)
    if not queries.is_open(seen.owner_id):
        raise NotLinked
    dispatch.answer_question(seen.owner_id, question_id, text=text, choice=choice)


def _check_author_or_payer(bot: Bot, seen: TurnStanding, user_id: str) -> None:
    author = seen.reply is not None and seen.reply.speaker == user_id
    if not author and not queries.is_identity_of(seen.owner_id, bot.platform, bot.bot_account, user_id):
        raise _not_theirs()


def _not_theirs() -> Forbidden:
    return Forbidden("Only who wrote the message, or pays for this chat, may do this.", code="not_yours")
