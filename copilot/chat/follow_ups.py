"""Deliver the results of sub-sessions to the session that started them, each once, as a turn of its own.

A row is inserted with the prompt and closed in the transaction that inserts the message with the result, so a crash
loses neither and repeats neither. Nothing is delivered while the parent runs a turn, because a tool call of that turn
may be about to return the same result; the end of the turn delivers what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec
import structlog
from django.db import connection, transaction

from config.core.db import fetch_all
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent import model_context
from copilot.chat import messages, next_turn, selectors, turn_results
from copilot.chat.announcements import publish_events
from copilot.chat.commands import ParentTurn, SendMessage
from copilot.chat.permissions import Permissions, intersect_permissions
from copilot.chat.prompt_tags import strip_server_tags
from copilot.chat.provenance import MAX_SOURCES, list_session_sources
from copilot.chat.turn_context import InboundContext
from copilot.models import OwedResult, Session, Turn
from copilot.realtime import lease
from copilot.tasks import FOLLOW_UP_DELAY_SECONDS, enqueue_follow_ups

log = structlog.get_logger(__name__)

FOLLOW_UP_ORIGIN = "follow_up"
# Results that end within a moment of each other are delivered together, but none waits longer than this for others.
GATHER_SECONDS = FOLLOW_UP_DELAY_SECONDS * 0.9
MAX_GATHER_SECONDS = 10.0
OVERDUE_SECONDS = MAX_GATHER_SECONDS + 5
CHILD_BUDGET_MICRODOLLARS = 200_000  # of a follow-up turn in a session that is a sub-session itself
MAX_MESSAGE_CHARACTERS = 48_000  # of all results together; the rest is read with a tool
MAX_TITLE_CHARACTERS = 80
MAX_AUTHOR_CHARACTERS = 150


# --- Recording ---------------------------------------------------------------------------------------

_INSERT_ROW = """
INSERT INTO copilot_owedresult (id, session_id, turn_id, child_id, run_id)
SELECT %(id)s, t.session_id, t.id, m.session_id, m.run_id
FROM copilot_message m JOIN copilot_turn t ON t.id = (m.data->>'parent_turn')::uuid
WHERE m.session_id = %(child)s AND m.run_id = %(run_id)s
ON CONFLICT DO NOTHING
"""


def record_owed_result(child_id: UUID, run_id: str) -> None:
    """Note, in the transaction that inserts a prompt, that its result is owed to the session that sent it."""
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_ROW, {"id": uuid4(), "child": child_id, "run_id": run_id})


def enqueue_for_child(child_id: UUID) -> None:
    """Deliver soon what a child session owes, after one of its prompts ended without a turn."""
    for session_id in OwedResult.objects.filter(child=child_id, outcome="").values_list(
        "session_id", flat=True
    ):
        enqueue_follow_ups(session_id)


# --- Delivering --------------------------------------------------------------------------------------


class _EndedPrompt(NamedTuple):
    """An owed result whose turn has ended."""

    id: UUID
    turn_id: UUID  # of the parent, which started the work
    child_id: UUID
    child_turn_id: UUID
    title: str
    agent: str
    status: str
    ended_at: datetime
    is_recent: bool  # others may be about to end too
    is_reported: bool
    is_unwanted: bool


# A result is unwanted when the parent was stopped after it started the work, or when it stopped the work itself.
_SELECT_ENDED = """
SELECT DISTINCT ON (f.id) f.id, f.turn_id, f.child_id, t.id AS child_turn_id, c.title, COALESCE(v.name, '') AS agent, t.status,
       t.ended_at, t.ended_at > clock_timestamp() - %(gather)s * interval '1 second' AS is_recent,
       EXISTS (SELECT 1 FROM copilot_message m WHERE m.session_id = f.session_id AND m.kind = 'tool_result'
               AND m.data->>'reported_turn' = t.id::text) AS is_reported,
       t.status = 'cancelled' AND t.cancel_reason = 'parent' OR c.deleted_at IS NOT NULL OR EXISTS (
           SELECT 1 FROM copilot_turn p WHERE p.session_id = f.session_id AND p.status = 'cancelled'
           AND p.cancel_reason <> 'abandoned' AND p.stop_requested_at >= f.created_at) AS is_unwanted
FROM copilot_owedresult f
JOIN copilot_session c ON c.id = f.child_id
LEFT JOIN copilot_agentversion v ON v.id = c.agent_version_id
JOIN copilot_turn t ON t.session_id = f.child_id AND t.run_ids @> jsonb_build_array(f.run_id) AND t.ended_at IS NOT NULL
WHERE f.session_id = %(session)s AND f.outcome = ''
ORDER BY f.id, t.created_at
"""
# A prompt that was refused after its row was inserted leaves no message, and its session is deleted.
_DROP_REFUSED = """
UPDATE copilot_owedresult f SET outcome = 'dropped' WHERE f.session_id = %(session)s AND f.outcome = '' AND NOT EXISTS (
    SELECT 1 FROM copilot_message m WHERE m.session_id = f.child_id AND m.run_id = f.run_id)
"""
_SELECT_OVERDUE = """
SELECT DISTINCT f.session_id FROM copilot_owedresult f
JOIN auth_user u ON u.id = (SELECT s.owner_id FROM copilot_session s WHERE s.id = f.session_id) AND u.is_active
JOIN copilot_turn t ON t.session_id = f.child_id AND t.run_ids @> jsonb_build_array(f.run_id)
WHERE f.outcome = '' AND t.ended_at < now() - %(seconds)s * interval '1 second'
  AND NOT EXISTS (SELECT 1 FROM copilot_turn p WHERE p.session_id = f.session_id
                  AND p.status IN ('queued', 'running', 'waiting'))
LIMIT 200
"""


class _OverdueSession(NamedTuple):
    session_id: UUID


def list_overdue_sessions() -> list[UUID]:
    """List idle sessions with results that should have arrived by now."""
    return [
        row.session_id for row in fetch_all(_OverdueSession, _SELECT_OVERDUE, {"seconds": OVERDUE_SECONDS})
    ]


def deliver_follow_ups(session_id: UUID) -> bool:
    """Deliver all results that are owed to an idle session as one message; return whether there were any."""
    with transaction.atomic():
        _lock_deliveries(session_id)
        session = Session.objects.select_related("owner").filter(pk=session_id).first()
        if session is None or Turn.objects.unfinished().filter(session=session_id).exists():
            return False
        with connection.cursor() as cursor:
            cursor.execute(_DROP_REFUSED, {"session": session_id})
        prompts = fetch_all(_EndedPrompt, _SELECT_ENDED, {"session": session_id, "gather": GATHER_SECONDS})
        is_closed = session.deleted_at is not None or session.archived_at is not None
        unwanted = [prompt for prompt in prompts if is_closed or prompt.is_unwanted]
        reported = [prompt for prompt in prompts if prompt.is_reported and prompt not in unwanted]
        _close_rows(unwanted, OwedResult.Outcome.DROPPED)
        _close_rows(reported, OwedResult.Outcome.REPORTED)
        due = [prompt for prompt in prompts if prompt not in unwanted and prompt not in reported]
        if not due or not session.owner.is_active or _should_wait_for_more(due):
            return False
        delivery = _insert_message(session, _choose_same_place(due))
    if delivery is None:
        return False
    _start_or_queue(session, delivery)
    log.info("follow_ups_delivered", session_id=str(session_id), results=delivery.results)
    return True


def _lock_deliveries(session_id: UUID) -> None:
    """Let one process at a time deliver to a session. A row lock could deadlock with those of turns that end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 22))", [str(session_id)])


def _close_rows(prompts: Iterable[_EndedPrompt], outcome: OwedResult.Outcome) -> None:
    if ids := [prompt.id for prompt in prompts]:
        OwedResult.objects.filter(pk__in=ids, outcome="").update(outcome=outcome)


def _should_wait_for_more(due: Sequence[_EndedPrompt]) -> bool:
    """Tell whether a result is so new that others may follow. The newest one's own task delivers them all."""
    endings = [prompt.ended_at for prompt in due]
    spread = max(endings) - min(endings)
    return any(prompt.is_recent for prompt in due) and spread < timedelta(seconds=MAX_GATHER_SECONDS)


def _choose_same_place(due: Sequence[_EndedPrompt]) -> list[_EndedPrompt]:
    """Choose the results that belong into one chat as the oldest one; the others follow after that turn."""
    turns = Turn.objects.in_bulk({prompt.turn_id for prompt in due})
    conversations = {turn_id: _read_context(turn).reply for turn_id, turn in turns.items()}

    def place(prompt: _EndedPrompt) -> str:
        reply = conversations[prompt.turn_id]
        return reply.conversation_id if reply else ""

    ordered = sorted(due, key=lambda prompt: prompt.ended_at)
    return [prompt for prompt in ordered if place(prompt) == place(ordered[0])]


def _read_context(turn: Turn) -> InboundContext:
    return msgspec.convert(turn.inbound_context, InboundContext)


@dataclass(frozen=True, kw_only=True)
class _Delivery:
    member: lease.QueueMember
    results: int


def _insert_message(session: Session, prompts: Sequence[_EndedPrompt]) -> _Delivery | None:
    command = _build_command(session, prompts)
    message_id = uuid4()
    context = model_context.build_message_context(sent=messages.SENT_TIME_PLACEHOLDER)
    accepted = messages.insert_message(message_id, command, [], context)
    if accepted is None:
        return None
    OwedResult.objects.filter(pk__in=[prompt.id for prompt in prompts], outcome="").update(
        outcome=OwedResult.Outcome.DELIVERED, message=message_id
    )
    if command.parent is not None:  # what comes of it is owed to the parent's parent
        record_owed_result(session.pk, command.run_id or "")
    member = lease.QueueMember(accepted.accept_number, True, str(message_id))
    return _Delivery(member=member, results=len(prompts))


def _build_command(session: Session, prompts: Sequence[_EndedPrompt]) -> SendMessage:
    """Build the message with the abilities that all the turns share which started the work."""
    turns = list(Turn.objects.filter(pk__in={prompt.turn_id for prompt in prompts}).order_by("created_at"))
    newest, contexts = turns[-1], [_read_context(turn) for turn in turns]
    sources = {source: None for prompt in prompts for source in list_session_sources(prompt.child_id)}
    parent = None
    if newest.parent_id is not None:
        parent = ParentTurn(turn_id=newest.parent_id, fence=0, budget_microdollars=CHILD_BUDGET_MICRODOLLARS)
    return SendMessage(
        user_id=session.owner_id,
        session_id=session.pk,
        text=_format_results(prompts, session.owner_id),
        origin=FOLLOW_UP_ORIGIN,
        permissions=reduce(
            intersect_permissions, [Permissions.from_json(turn.permissions) for turn in turns]
        ),
        tier=newest.tier,
        mode=newest.mode,
        run_id=f"follow-up-{uuid4().hex}",
        author=_format_author(prompts),
        parent=parent,
        inbound_context=replace(
            contexts[-1],
            sources=tuple(sources)[:MAX_SOURCES],
            api_request=None,
            unattended=any(
                context.unattended or turn.origin == "schedule"
                for context, turn in zip(contexts, turns, strict=True)
            ),
            follow_ups=max(context.follow_ups for context in contexts) + 1,
        ),
    )


def _start_or_queue(session: Session, delivery: _Delivery) -> None:
    """Start a turn with the committed message, or queue it. What fails here is started by the sweep."""
    token = uuid4()
    try:
        verdict = lease.claim_or_queue(
            str(session.pk),
            turn_id=str(uuid4()),
            token=str(token),
            member=delivery.member,
            order=float(delivery.member.accept_number),
        )
        if isinstance(verdict, lease.SessionClaimed):
            next_turn.restore_queue_in_redis(session.pk)
            next_turn.release_or_start_next(session.pk, token, None)
        else:
            publish_events(session.pk, session.owner_id, [(selectors.get_queue(session.pk), None)])
    except REDIS_OUTAGE_ERRORS:
        log.warning("follow_up_not_started", session_id=str(session.pk))


# --- The message -------------------------------------------------------------------------------------

_STATUS_WORDS = {"succeeded": "finished", "failed": "failed", "cancelled": "was stopped by a person"}


def _format_author(prompts: Sequence[_EndedPrompt]) -> str:
    """Name the origin in one line, for people."""
    if len(prompts) > 1:
        return f"Results of {len(prompts)} sub-sessions"
    [prompt] = prompts
    kind = "agent" if prompt.agent else "sub-session"
    return f"Result of {kind}: {_name(prompt)}"[:MAX_AUTHOR_CHARACTERS]


def _name(prompt: _EndedPrompt) -> str:
    return " ".join((prompt.agent or prompt.title or "Untitled").split())[:MAX_TITLE_CHARACTERS]


def _format_results(prompts: Sequence[_EndedPrompt], user_id: int) -> str:
    share = MAX_MESSAGE_CHARACTERS // len(prompts)
    return "\n\n".join(_format_result(prompt, user_id, share) for prompt in prompts)


def _format_result(prompt: _EndedPrompt, user_id: int, most_characters: int) -> str:
    result = turn_results.get_turn_result(user_id, prompt.child_turn_id)
    kind = f"The agent {_name(prompt)}" if prompt.agent else f"The sub-session “{_name(prompt)}”"
    head = f"{kind} {_STATUS_WORDS[prompt.status]} (session_id {prompt.child_id})."
    text = result.text
    if result.error is not None:
        text = " ".join(part for part in (result.error.message, result.error.hint, text) if part)
    if len(text) > most_characters:
        tool = "view_agent_output" if prompt.agent else "get_sub_session_result"
        text = f"{text[:most_characters]}… (cut: {tool} returns it whole)"
    return strip_server_tags(f"{head}\n\n{text}" if text else head)
