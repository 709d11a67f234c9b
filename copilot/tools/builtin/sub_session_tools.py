"""Shared helpers of the tools for sub-sessions: find, prompt, wait for and report on them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import Q
from pydantic import AfterValidator

from billing.selectors import plan_status
from config.core.db import run_in_thread
from config.core.errors import FenceLost, RequestRefused
from config.core.json_values import JSON
from copilot.chat import model_calls, sessions, sub_sessions, turn_results, turn_transitions
from copilot.chat.admission import submit_message
from copilot.chat.commands import ParentTurn, SendMessage, clean_text
from copilot.chat.permissions import Permissions
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import InboundContext, TurnContext
from copilot.chat.turn_results import TurnResult
from copilot.models import AgentVersion, Message, Session, Turn
from copilot.realtime import fanout
from copilot.realtime.events import ToolProgressed
from copilot.tools.base import ToolError, ToolInvocation

PROGRESS_INTERVAL_SECONDS = 60.0
WAIT_MARGIN_SECONDS = 10  # between the end of a wait and the call's own timeout
DEFAULT_WAIT_SECONDS = 60
MAX_WAIT_SECONDS = int(settings.MAX_TOOL_WAIT_SECONDS)
WAIT_DESCRIPTION = f"How long to wait: 0 to {MAX_WAIT_SECONDS}."
WaitSeconds = Annotated[int, AfterValidator(lambda seconds: min(max(seconds, 0), MAX_WAIT_SECONDS))]
DEFAULT_BUDGET_MICRODOLLARS = 200_000  # of a child, unless its parent has less left
UNFINISHED_STATUSES = ("queued", "running")
RAN_TO_ITS_END_NOTE = "Results cannot be delivered here later, so the call waited for the end."
POLL_IN_THIS_TURN_NOTE = (
    "It is not finished, and nothing will tell you later: ask with {poll} in this turn, "
    "or say that the work continues under the link."
)
ARRIVES_LATER_NOTE = (
    "It is not finished. Its result arrives here by itself as a new message when it ends, so do not ask for it "
    "again and again: go on with something else, or end your answer and say what is still running."
)
WAITS_FOR_APPROVAL_NOTE = "It waits for the user to approve something, which is done under the link."


@dataclass(frozen=True, kw_only=True)
class SubSessionPrompt:
    """A message to a child session, tracked by its run_id whatever else happens in that session."""

    session_id: UUID
    turn_id: UUID  # of this message, or the turn it is queued behind
    run_id: str | None
    message_id: UUID | None = None  # while it is queued


# --- Find --------------------------------------------------------------------------------------------


def get_sub_session(context: TurnContext, session_id: str) -> Session:
    """Return a descendant of the caller's session; any other session is reported as not found."""
    try:
        child_id = UUID(session_id)
    except ValueError:
        raise make_not_found_error() from None
    parent_id = context.session_id
    family = Q(parent=parent_id) | Q(parent__parent=parent_id) | Q(parent__parent__parent=parent_id)
    child = Session.objects.visible_to(context.user_id).filter(family, pk=child_id).first()
    if child is None:
        raise make_not_found_error()
    return child


def make_not_found_error() -> ToolError:
    return ToolError("no_such_sub_session", "There is no such sub-session.")


def find_latest_prompt(session: Session) -> SubSessionPrompt:
    """Return the parent's newest queued message, or else the last turn."""
    last = Turn.objects.filter(session=session).order_by("-created_at").first()
    if last is None:
        raise ToolError("nothing_started", "Nothing was started in this sub-session.")
    queued = Message.objects.queued().filter(session=session, origin="parent")
    message = queued.order_by("-accept_number").first()
    return SubSessionPrompt(
        session_id=session.pk,
        turn_id=last.pk,
        run_id=message.run_id if message else None,
        message_id=message.pk if message else None,
    )


# --- Prompt ------------------------------------------------------------------------------------------


def start_sub_session(
    context: TurnContext,
    text: str,
    *,
    permissions: Permissions,
    agent_version: AgentVersion | None = None,
    tier: str = "",
) -> SubSessionPrompt:
    """Create a child session and send it its first prompt; delete the child if that is refused."""
    parent = Session.objects.get(pk=context.session_id)
    child = sub_sessions.create_sub_session(parent, agent_version=agent_version)
    try:
        return prompt_sub_session(context, child, text, permissions=permissions, tier=tier)
    except (RequestRefused, FenceLost, ToolError):
        sessions.delete_session(context.user_id, child.pk)
        raise


def prompt_sub_session(
    context: TurnContext, child: Session, text: str, *, permissions: Permissions, tier: str = ""
) -> SubSessionPrompt:
    run_id = uuid4().hex
    budget = compute_budget(context)
    if not budget:
        raise ToolError("budget_reached", "Nothing is left of this turn's budget. Finish with what you have.")
    parent = ParentTurn(
        turn_id=UUID(context.turn_id),
        fence=context.fence,
        budget_microdollars=budget,
        is_owed_result=context.channel.async_delivery,
    )
    submission = submit_message(
        SendMessage(
            user_id=context.user_id,
            session_id=child.pk,
            text=clean_text(text),
            origin="parent",
            permissions=permissions,
            tier=tier,
            run_id=run_id,
            parent=parent,
            inbound_context=InboundContext(
                sources=list_session_sources(UUID(context.session_id)),
                unattended=context.inbound_context.unattended or context.origin == "schedule",
                must_wait=not context.channel.async_delivery,
            ),
        )
    )
    return SubSessionPrompt(session_id=child.pk, turn_id=submission.turn_id, run_id=run_id)


def compute_budget(context: TurnContext) -> int:
    """Return the budget of a child in microdollars: at most half of what its parent has left.

    The budget is reserved while the child runs or waits for a person, and the parent must be able to answer
    meanwhile.
    """
    spending = model_calls.get_turn_spending(UUID(context.turn_id))
    ceiling = plan_status.get_plan_terms(context.user_id).turn_ceiling_microdollars
    bounds = [bound for bound in (settings.TURN_BUDGET_MICRODOLLARS, ceiling, spending.budget) if bound]
    if not bounds:
        return DEFAULT_BUDGET_MICRODOLLARS
    left = min(bounds) - spending.spent - spending.reserved
    return max(0, min(DEFAULT_BUDGET_MICRODOLLARS, left // 2))


# --- Wait and report ---------------------------------------------------------------------------------


def compute_wait_seconds(context: TurnContext, requested: int) -> float:
    """Return how long to wait: until the turn's own limit where the result cannot be delivered later."""
    left = context.seconds_left(datetime.now(UTC))
    if context.channel.async_delivery:
        return min(
            float(requested), max(0.0, min(settings.MAX_TOOL_WAIT_SECONDS, left) - WAIT_MARGIN_SECONDS)
        )
    return max(0.0, left - 2 * WAIT_MARGIN_SECONDS)  # the model must still be able to answer


async def wait_for_outcome(
    invocation: ToolInvocation, prompt: SubSessionPrompt, seconds: float
) -> TurnResult:
    """Wait for the prompt's turn. A failed read raises; it never looks like a status."""
    user_id, turn_id, run_id = invocation.context.user_id, prompt.turn_id, prompt.run_id
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        outcome = await turn_results.wait_for_turn(
            user_id,
            turn_id,
            run_id=run_id,
            timeout_seconds=min(left, PROGRESS_INTERVAL_SECONDS),
            tail=fanout.get_loop_fanout(),
        )
        if outcome.status not in UNFINISHED_STATUSES:
            return outcome
        invocation.emit(ToolProgressed(call_id=invocation.call_id, message="Waiting for the sub-session"))
    return await run_in_thread(turn_results.get_turn_result, user_id, turn_id, run_id=run_id)


def get_reported_turn_id(outcome: TurnResult) -> str | None:
    """Return the turn whose final result this is, so that it is not delivered a second time."""
    return outcome.turn_id if outcome.status in Turn.ENDINGS else None


def build_report(
    context: TurnContext, prompt: SubSessionPrompt, outcome: TurnResult, *, poll: str
) -> dict[str, JSON]:
    report: dict[str, JSON] = {
        "status": outcome.status,
        "session_id": str(prompt.session_id),
        "link": turn_results.build_session_url(prompt.session_id),
        "text": outcome.text,
        "tool_calls": [{"tool": call.tool, "success": call.success} for call in outcome.tool_calls],
        "tokens": {"input": outcome.usage.input, "output": outcome.usage.output},
    }
    turn = Turn.objects.get(pk=outcome.turn_id)
    if outcome.status in ("queued", "running") and not context.channel.async_delivery:
        report["delivery_unsupported"] = True
    if outcome.status == "queued":
        return report | {"note": _poll_note(context, poll)}
    report["elapsed_seconds"] = _elapsed_seconds(turn)
    if outcome.status in Turn.ENDINGS and not context.channel.async_delivery:
        report["note"] = RAN_TO_ITS_END_NOTE
    match outcome.status:
        case "running":
            report["note"] = _poll_note(context, poll)
        case "waiting":
            report["note"] = WAITS_FOR_APPROVAL_NOTE
        case "cancelled":
            report["cancelled_by"] = (
                "the parent" if turn_transitions.get_cancel_reason(turn) == "parent" else "a person"
            )
        case "failed" if outcome.error is not None:
            report["error"] = {"code": outcome.error.code, "message": _error_sentence(outcome.error)}
    return report


def _poll_note(context: TurnContext, poll: str) -> str:
    return ARRIVES_LATER_NOTE if context.channel.async_delivery else POLL_IN_THIS_TURN_NOTE.format(poll=poll)


def _elapsed_seconds(turn: Turn) -> float:
    return round(((turn.ended_at or datetime.now(UTC)) - turn.created_at).total_seconds(), 1)


def _error_sentence(error: turn_results.TurnResultError) -> str:
    return " ".join(part for part in (error.message, error.hint, error.details) if part)
