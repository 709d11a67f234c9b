"""Work towards a session's goal: a model judges each answer, and the next step is submitted."""

from __future__ import annotations

from functools import cache
from uuid import UUID

import msgspec
import structlog
from django.conf import settings

from config.core.errors import RequestRefused
from config.core.redis import REDIS_OUTAGE_ERRORS
from config.core.text import make_storable
from copilot.agent import one_shot_requests
from copilot.agent.model_context import PROMPTS_DIRECTORY
from copilot.agent.one_shot_requests import OneShotCause, OneShotQuestion
from copilot.chat import goals, messages, queue
from copilot.chat import selectors as chat_selectors
from copilot.chat.admission import submit_message
from copilot.chat.commands import SendMessage, clean_text
from copilot.chat.goals import GOAL_AUTHOR, format_goal_message
from copilot.chat.permissions import Permissions, intersect_permissions
from copilot.chat.prompt_tags import escape_server_tags
from copilot.models import Message, Session, Turn
from copilot.providers.base import ProviderFailure
from copilot.realtime import event_log
from copilot.realtime.events import GoalContinued

log = structlog.get_logger(__name__)

MAX_ANSWER_CHARACTERS = 16_000  # from the end, where an answer states its result
JUDGE_TIMEOUT_SECONDS = 30.0
JUDGE_MAX_TOKENS = 1_024
UNREADABLE_REASON = "The model's judgement could not be read."
NO_MODEL_REASON = "No model was available to judge the goal."


class GoalJudgement(msgspec.Struct, forbid_unknown_fields=False):
    achieved: bool
    reason: str = ""
    next_step: str = ""


def judge_goal(turn_id: UUID) -> None:
    """Judge the goal after a turn that succeeded, and end, pause or continue it. Queued work goes first."""
    turn = Turn.objects.select_related("session").filter(pk=turn_id, status="succeeded").first()
    if turn is None or turn.session.goal_state != Session.Goal.ACTIVE or _has_newer_work(turn):
        return
    session = turn.session
    judgement = _ask_for_judgement(session.goal, turn)
    if isinstance(judgement, str):
        _pause_goal(turn, judgement)
    elif judgement.achieved:
        goals.record_goal_judgement(session.pk, session.goal, "achieved", judgement.reason)
    elif session.goal_continuations >= settings.GOAL_CONTINUATIONS:
        goals.record_goal_judgement(session.pk, session.goal, "exhausted", judgement.reason)
    elif not _has_newer_work(turn):
        _continue_goal(turn, judgement)


def _has_newer_work(turn: Turn) -> bool:
    newer = Turn.objects.filter(session=turn.session_id, created_at__gt=turn.created_at)
    return newer.exists() or queue.has_pending_messages(turn.session_id)


def _ask_for_judgement(goal: str, turn: Turn) -> GoalJudgement | str:
    """Ask models until one answers; return a reason as text if there is no usable judgement."""
    question = OneShotQuestion(
        system=_read_instructions(),
        text=escape_server_tags(f"<goal>\n{goal}\n</goal>\n<answer>\n{_read_answer(turn)}\n</answer>"),
        max_tokens=JUDGE_MAX_TOKENS,
        timeout_seconds=JUDGE_TIMEOUT_SECONDS,
    )
    for entry in one_shot_requests.list_models_to_ask():
        try:
            return _parse_judgement(
                one_shot_requests.ask_model_and_wait(
                    entry, question, OneShotCause.for_turn(turn, "goal")
                ).text
            )
        except ProviderFailure as failure:
            log.warning("goal_judge_failed", model=entry.name, code=failure.code)
    return NO_MODEL_REASON


def _read_answer(turn: Turn) -> str:
    rows = Message.objects.filter(turn=turn, kind="assistant", hidden="").order_by("sequence")
    return "\n\n".join(rows.values_list("content", flat=True))[-MAX_ANSWER_CHARACTERS:]


def _parse_judgement(reply: str) -> GoalJudgement | str:
    try:
        judgement = msgspec.json.decode(reply[reply.index("{") : reply.rindex("}") + 1], type=GoalJudgement)
    except (ValueError, msgspec.DecodeError):
        return UNREADABLE_REASON
    return GoalJudgement(
        judgement.achieved, make_storable(judgement.reason), make_storable(judgement.next_step)
    )


@cache
def _read_instructions() -> str:
    return (PROMPTS_DIRECTORY / "goal.md").read_text(encoding="utf-8").strip()


def _continue_goal(turn: Turn, judgement: GoalJudgement) -> None:
    """Count the continuation, then submit it as a message with a run_id, which gets a turn of its own."""
    session, number = turn.session, turn.session.goal_continuations + 1
    if not goals.count_goal_continuation(session.pk, session.goal, number, judgement.reason):
        return
    try:
        submit_message(
            SendMessage(
                user_id=session.owner_id,
                session_id=session.pk,
                text=clean_text(format_goal_message(session.goal, judgement.next_step)),
                origin="goal",
                permissions=_goal_permissions(turn),
                tier=turn.tier,
                mode=turn.mode,
                run_id=f"goal-{turn.pk}",
                author=GOAL_AUTHOR,
            )
        )
    except RequestRefused as refusal:
        _pause_goal(turn, f"Couldn't continue: {refusal.message}")
        return
    event = GoalContinued(
        state="active", reason=judgement.reason, number=number, most=settings.GOAL_CONTINUATIONS
    )
    try:
        event_log.append_events(str(session.pk), [(event, None)])
    except REDIS_OUTAGE_ERRORS:
        log.warning("goal_event_not_published", session_id=str(session.pk), number=number)


def _goal_permissions(turn: Turn) -> Permissions:
    """Intersect the judged turn's permissions with those of the person who set the goal."""
    goal_permissions = turn.session.goal_permissions
    permissions = Permissions.from_json(turn.permissions)
    return (
        permissions
        if goal_permissions is None
        else intersect_permissions(permissions, Permissions.from_json(goal_permissions))
    )


def _pause_goal(turn: Turn, reason: str) -> None:
    session = turn.session
    if not goals.record_goal_judgement(session.pk, session.goal, "paused", reason):
        return
    row_id = messages.post_notice(session.pk, turn.pk, "goal_paused")
    try:
        event = chat_selectors.build_notice_posted(row_id, "goal_paused")
        event_log.append_events(str(session.pk), [(event, str(turn.pk))], user_id=session.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("goal_notice_not_published", session_id=str(session.pk), turn_id=str(turn.pk))
