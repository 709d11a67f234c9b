"""Sub-sessions as a tool sees them: which are the caller's, what they are told, and what became of it (A21)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import Q
from pydantic import AfterValidator

from billing import queries as billing_queries
from copilot import outcomes, ports, sessions, turns, usage
from copilot.bridge import in_thread
from copilot.context import Arrival, TurnContext
from copilot.errors import FenceLost, Refused
from copilot.events import JSON
from copilot.live import tail
from copilot.models import AgentVersion, Message, Session, Turn
from copilot.outcomes import Outcome
from copilot.permissions import Permissions
from copilot.ports import Parent, Said
from copilot.provenance import sources_of_session
from copilot.tools.base import ToolFailed

MARGIN_SECONDS = 10  # between the end of a wait and the call's own limit (A32)
LONGEST_SECONDS = settings.SUB_SESSION_MAX_WAIT_SECONDS
WAITING = f"How long to wait: 0 to {LONGEST_SECONDS}."
Wait = Annotated[int, AfterValidator(lambda seconds: min(max(seconds, 0), LONGEST_SECONDS))]
BUDGET_MICRODOLLARS = 200_000  # what a child may spend unless its parent has less left (A32.1)
UNFINISHED = ("queued", "running")
ASK_IN_THIS_TURN = (
    "It is not finished, and nothing will tell you later: ask with {poll} in this turn, "
    "or say that the work goes on under the link."
)
ASK_LATER = "It is not finished. Ask for its result with {poll}, or tell the user where to find it."
WAITS_FOR_A_PERSON = "It waits for the user to approve something, which is done under the link."


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Something that was said to a child: it is followed by its run_id, whatever else happens there (A21.7)."""

    session_id: UUID
    turn_id: UUID  # its own, or the one it waits behind
    run_id: str | None
    message_id: UUID | None = None  # while it is queued


# --- whose -------------------------------------------------------------------------------------------


def of_caller(context: TurnContext, session_id: str) -> Session:
    """A descendant of the caller's session; everything else looks the same (A21.8)."""
    try:
        wanted = UUID(session_id)
    except ValueError:
        raise no_such() from None
    mine = context.session_id
    family = Q(parent=mine) | Q(parent__parent=mine) | Q(parent__parent__parent=mine)
    child = Session.objects.filter(family, pk=wanted, owner=context.user_id, deleted_at=None).first()
    if child is None:
        raise no_such()
    return child


def no_such() -> ToolFailed:
    return ToolFailed("no_such_sub_session", "There is no such sub-session.")


def newest(session: Session) -> Prompt:
    """What a child did last, or will do next for its parent."""
    last = Turn.objects.filter(session=session).order_by("-created_at").first()
    if last is None:
        raise ToolFailed("nothing_started", "Nothing was started in this sub-session.")
    queued = Message.objects.filter(session=session, sequence=None, dropped_at=None, origin="parent")
    message = queued.order_by("-accept_number").first()
    return Prompt(
        session_id=session.pk,
        turn_id=last.pk,
        run_id=message.run_id if message else None,
        message_id=message.pk if message else None,
    )


# --- saying ------------------------------------------------------------------------------------------


def begin(
    context: TurnContext,
    text: str,
    *,
    permissions: Permissions,
    agent_version: AgentVersion | None = None,
    tier: str = "",
) -> Prompt:
    """A new child, told its task; of one that may not start nothing stays."""
    parent = Session.objects.get(pk=context.session_id)
    child = sessions.create_child(parent, agent_version=agent_version)
    try:
        return say_to(context, child, text, permissions=permissions, tier=tier)
    except (Refused, FenceLost, ToolFailed):
        sessions.delete(context.user_id, child.pk)
        raise


def say_to(
    context: TurnContext, child: Session, text: str, *, permissions: Permissions, tier: str = ""
) -> Prompt:
    """The ordinary way in, on behalf of the running turn (A21.2)."""
    run_id = uuid4().hex
    budget = budget_for(context)
    if not budget:
        raise ToolFailed(
            "budget_reached", "Nothing is left of this turn's budget. Finish with what you have."
        )
    parent = Parent(turn_id=UUID(context.turn_id), fence=context.fence, budget_microdollars=budget)
    heard = ports.say(
        Said(
            user_id=context.user_id,
            session_id=child.pk,
            text=text,
            origin="parent",
            permissions=permissions,
            tier=tier,
            run_id=run_id,
            parent=parent,
            arrival=Arrival(
                sources=sources_of_session(UUID(context.session_id)),
                unattended=context.arrival.unattended or context.origin == "schedule",
            ),
        )
    )
    return Prompt(session_id=child.pk, turn_id=heard.turn_id, run_id=run_id)


def budget_for(context: TurnContext) -> int:
    """What a child is given, in microdollars: at most half of what its parent has left (A32.1).

    What is given is reserved while the child runs or waits for a person; its parent must be able to answer meanwhile.
    """
    spending = usage.spending(UUID(context.turn_id))
    ceiling = billing_queries.plan(context.user_id).turn_ceiling_microdollars
    bounds = [bound for bound in (settings.TURN_BUDGET_MICRODOLLARS, ceiling, spending.given) if bound]
    if not bounds:
        return BUDGET_MICRODOLLARS
    left = min(bounds) - spending.spent - spending.reserved
    return max(0, min(BUDGET_MICRODOLLARS, left // 2))


# --- what became of it -------------------------------------------------------------------------------


def waiting_seconds(context: TurnContext, asked: int) -> float:
    """Where no news can come later, the call waits as long as it may (A31.4)."""
    left = min(float(settings.MAX_TOOL_WAIT_SECONDS), context.seconds_left(datetime.now(UTC)))
    longest = max(0.0, left - MARGIN_SECONDS)
    return min(float(asked), longest) if context.channel.async_delivery else longest


async def outcome_of(context: TurnContext, prompt: Prompt, seconds: float) -> Outcome:
    """Subscribed before the rows are looked at; not being able to look is an error, never a status (A21.4)."""
    user_id, turn_id, run_id = context.user_id, prompt.turn_id, prompt.run_id
    if seconds <= 0:
        return await in_thread(outcomes.at_once, user_id, turn_id, run_id=run_id)
    return await outcomes.wait(user_id, turn_id, run_id=run_id, timeout_seconds=seconds, tail=tail.here())


def report(context: TurnContext, prompt: Prompt, outcome: Outcome, *, poll: str) -> dict[str, JSON]:
    """What the model is told of a child (A21.5)."""
    told: dict[str, JSON] = {
        "status": outcome.status,
        "session_id": str(prompt.session_id),
        "link": outcomes.link_to(prompt.session_id),
        "text": outcome.text,
        "tool_calls": [{"tool": call.tool, "success": call.success} for call in outcome.tool_calls],
        "tokens": {"input": outcome.usage.input, "output": outcome.usage.output},
    }
    turn = Turn.objects.get(pk=outcome.turn_id)
    if outcome.status in ("queued", "running") and not context.channel.async_delivery:
        told["delivery_unsupported"] = True
    if outcome.status == "queued":
        return told | {"note": _note(context, poll)}
    told["elapsed_seconds"] = _elapsed(turn)
    match outcome.status:
        case "running":
            told["note"] = _note(context, poll)
        case "waiting":
            told["note"] = WAITS_FOR_A_PERSON
        case "cancelled":
            told["cancelled_by"] = "the parent" if turns.cancel_reason(turn) == "parent" else "a person"
        case "failed" if outcome.error is not None:
            told["error"] = {"code": outcome.error.code, "message": _sentence(outcome.error)}
    return told


def _note(context: TurnContext, poll: str) -> str:
    return (ASK_LATER if context.channel.async_delivery else ASK_IN_THIS_TURN).format(poll=poll)


def _elapsed(turn: Turn) -> float:
    return round(((turn.ended_at or datetime.now(UTC)) - turn.created_at).total_seconds(), 1)


def _sentence(error: outcomes.OutcomeError) -> str:
    return " ".join(part for part in (error.message, error.hint, error.details) if part)
