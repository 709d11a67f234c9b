"""Works towards a session's goal: after each answer a model judges, and the next step is said (A30.4)."""

from __future__ import annotations

import logging
from functools import cache
from uuid import UUID

import msgspec
from django.conf import settings

from copilot import history, queries, sessions
from copilot.agent import inquiries
from copilot.agent.inquiries import Cause, Question
from copilot.agent.prompt import PROMPTS
from copilot.errors import Refused
from copilot.events import GoalContinued
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Message, Session, Turn
from copilot.permissions import Permissions, intersect
from copilot.ports import Said, say
from copilot.providers.base import ProviderFailure
from copilot.rows import storable
from copilot.tags import escape_server_tags

log = logging.getLogger(__name__)

ANSWER_CHARACTERS = 16_000  # the end of it, where an answer says what it has come to
SECONDS = 30.0
TOKENS = 1_024
AUTHOR = "goal"  # marks the row as the server's own
UNREADABLE = "What the judging model said could not be read."
NOBODY_JUDGES = "No model could be asked whether it is achieved."


class Judgement(msgspec.Struct, forbid_unknown_fields=False):
    achieved: bool
    reason: str = ""
    next_step: str = ""


def judge(turn_id: UUID) -> None:
    """After a turn that succeeded: achieved, exhausted, paused, or one step further. Whatever waits goes first."""
    turn = Turn.objects.select_related("session").filter(pk=turn_id, status="succeeded").first()
    if turn is None or turn.session.goal_state != Session.Goal.ACTIVE or _goes_on(turn):
        return
    session = turn.session
    judgement = _judged(session.goal, turn)
    if isinstance(judgement, str):
        _pause(turn, judgement)
    elif judgement.achieved:
        sessions.goal_judged(session.pk, session.goal, "achieved", judgement.reason)
    elif session.goal_continuations >= settings.GOAL_CONTINUATIONS:
        sessions.goal_judged(session.pk, session.goal, "exhausted", judgement.reason)
    elif not _goes_on(turn):
        _continue(turn, judgement)


def _goes_on(turn: Turn) -> bool:
    """Something is queued or has begun since: its own ending will be judged."""
    newer = Turn.objects.filter(session=turn.session_id, created_at__gt=turn.created_at)
    return newer.exists() or history.has_pending(turn.session_id)


def _judged(goal: str, turn: Turn) -> Judgement | str:
    """What the first model that answers says; words when nothing can be made of it."""
    question = Question(
        system=_wording(),
        text=escape_server_tags(f"<goal>\n{goal}\n</goal>\n<answer>\n{_answer(turn)}\n</answer>"),
        most_tokens=TOKENS,
        seconds=SECONDS,
    )
    for entry in inquiries.models():
        try:
            return _read(inquiries.ask(entry, question, Cause.of(turn, "goal")).text)
        except ProviderFailure as failure:
            log.warning("%s could not judge a goal: %s", entry.name, failure.code)
    return NOBODY_JUDGES


def _answer(turn: Turn) -> str:
    """The words people saw of the turn; thoughts and tools are not part of them (A14.6)."""
    rows = Message.objects.filter(turn=turn, kind="assistant", hidden="").order_by("sequence")
    return "\n\n".join(rows.values_list("content", flat=True))[-ANSWER_CHARACTERS:]


def _read(reply: str) -> Judgement | str:
    """Models put words or fences around what they were asked for."""
    try:
        said = msgspec.json.decode(reply[reply.index("{") : reply.rindex("}") + 1], type=Judgement)
    except (ValueError, msgspec.DecodeError):
        return UNREADABLE
    return Judgement(said.achieved, storable(said.reason), storable(said.next_step))


@cache
def _wording() -> str:
    return (PROMPTS / "goal.md").read_text(encoding="utf-8").strip()


# --- going on ----------------------------------------------------------------------------------------


def next_message(goal: str, step: str = "") -> str:
    """What the server says in the user's place."""
    told = f"Go on towards the goal: {goal}"
    return f"{told}\n\nNext step: {step}" if step else told


def _continue(turn: Turn, judgement: Judgement) -> None:
    """Counted first, then said by everybody's way in; a message with a run_id has a turn of its own."""
    session, number = turn.session, turn.session.goal_continuations + 1
    if not sessions.goal_continued(session.pk, session.goal, number, judgement.reason):
        return
    try:
        say(
            Said(
                user_id=session.owner_id,
                session_id=session.pk,
                text=next_message(session.goal, judgement.next_step),
                origin="goal",
                permissions=_permissions(turn),
                tier=turn.tier,
                mode=turn.mode,
                run_id=f"goal-{turn.pk}",
                author=AUTHOR,
            )
        )
    except Refused as refusal:
        _pause(turn, f"It could not go on: {refusal.message}")
        return
    told = GoalContinued(
        state="active", reason=judgement.reason, number=number, most=settings.GOAL_CONTINUATIONS
    )
    try:
        stream.publish_now(str(session.pk), [(told, None)])
    except RedisDown:
        log.warning("the event log is unreachable; a goal went on without being told")


def _permissions(turn: Turn) -> Permissions:
    """Those of the turn that was judged, and no more than whoever set the goal had."""
    given = turn.session.goal_permissions
    permissions = Permissions.from_json(turn.permissions)
    return permissions if given is None else intersect(permissions, Permissions.from_json(given))


def _pause(turn: Turn, why: str) -> None:
    """Never again by itself: the person is told, and has the next word."""
    session = turn.session
    if not sessions.goal_judged(session.pk, session.goal, "paused", why):
        return
    row_id = history.post_notice(session.pk, turn.pk, "goal_paused")
    try:
        told = queries.notice_posted(row_id, "goal_paused")
        stream.publish_now(str(session.pk), [(told, str(turn.pk))], user_id=session.owner_id)
    except RedisDown:
        log.warning("the event log is unreachable; clients will catch up from the rows")
