"""Take people's decisions about tool calls, and resume a turn with its last one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog
from pydantic import ValidationError

from config.core.errors import Forbidden, InvalidRequest
from config.core.json_values import JSON
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import tasks
from copilot.chat import approvals, selectors, turns
from copilot.chat.admission_limits import check_account_is_active, check_limit_and_place_hold, release_hold
from copilot.chat.announcements import publish_events
from copilot.chat.approvals import ApprovalDecision, ResumedTurn
from copilot.chat.commands import DecideApproval, clean_text
from copilot.chat.permissions import SCOPE_TOOLS, Permissions
from copilot.models import Approval, Turn
from copilot.realtime import lease
from copilot.realtime.events import ApprovalDecided, Event, TurnQueued
from copilot.tools import registry
from copilot.tools.calls import canonicalize_json, describe_invalid_arguments, is_nested_too_deep
from copilot.tools.mcp import tool_listing
from copilot.tools.results import redact_arguments

log = structlog.get_logger(__name__)

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class DecisionResult:
    """The decisions that were recorded, and the turns that resume."""

    approvals: list[ApprovalDecided]
    resumed: list[UUID]


def decide_approvals(
    user_id: int, decisions: Sequence[DecideApproval], *, scopes: frozenset[str] | None = None
) -> DecisionResult:
    """Take all decisions or none; approvals that are not mentioned stay open.

    `scopes` are those of an API key; None means a signed-in person.
    """
    ids = [decision.approval_id for decision in decisions]
    if len(set(ids)) != len(ids):
        raise InvalidRequest("Each call can be decided only once.")
    check_account_is_active(user_id)
    rows = approvals.get_owned_approvals(user_id, ids)
    _check_scopes(rows.values(), scopes)
    checked = [_build_decision(decision, rows[decision.approval_id]) for decision in decisions]
    with ExitStack() as holds:  # if one is refused, all are, and no hold may stay behind
        resumed = approvals.record_decisions(
            user_id, checked, may_resume=partial(_place_hold_again, user_id, holds)
        )
        holds.pop_all()
    events = [_build_decided_event(decision) for decision in checked]
    _publish_decisions(user_id, rows, events, resumed)
    for turn in resumed:
        tasks.wake_worker(turn.turn_id)
    return DecisionResult(approvals=events, resumed=[turn.turn_id for turn in resumed])


def _check_scopes(rows: Iterable[Approval], scopes: frozenset[str] | None) -> None:
    """Require a person for what only a person may allow, or a key that could do the same without a model."""
    if scopes is None or "manage" in scopes:
        return
    for row in rows:
        tool = registry.find_tool(row.tool)
        if row.tool in SCOPE_TOOLS["manage"] or (tool is not None and tool.approval == "manual_only"):
            raise Forbidden(
                f"Only a signed-in person, or a key with the manage scope, can decide about {row.tool}.",
                code="insufficient_scope",
                scope="manage",
            )


def _place_hold_again(user_id: int, holds: ExitStack, turn_id: UUID) -> None:
    check_limit_and_place_hold(user_id, turn_id)
    holds.callback(release_hold, user_id, turn_id)


# --- Input -------------------------------------------------------------------------------------------


def _build_decision(command: DecideApproval, row: Approval) -> ApprovalDecision:
    return ApprovalDecision(
        approval_id=row.pk,
        approve=command.decision == "approve",
        final_arguments=_parse_final_arguments(command, row) if command.decision == "approve" else None,
        feedback=clean_feedback(command.feedback),
    )


def clean_feedback(text: str) -> str:
    """Remove terminal codes, control characters and the server's tags from what a person wrote."""
    text = _CONTROL_CHARACTERS.sub("", _TERMINAL_CODES.sub("", text))
    return clean_text(text).strip()


def _parse_final_arguments(command: DecideApproval, row: Approval) -> dict[str, JSON] | None:
    if command.arguments is None:
        return None
    if is_nested_too_deep(command.arguments):
        raise InvalidRequest("The arguments are nested too deeply.", code="invalid_arguments")
    final = canonicalize_json(
        _restore_masked_secrets(command.arguments, row.arguments, redact_arguments(row.arguments))
    )
    assert isinstance(final, dict)
    if final == row.arguments:
        return None
    try:
        is_offered = _check_arguments_by_tool(final, row)
    except ValidationError as problem:
        raise InvalidRequest(describe_invalid_arguments(problem), code="invalid_arguments") from problem
    if not is_offered:
        raise InvalidRequest(
            "This tool's arguments can't be edited. Approve or reject the call as it is.",
            code="invalid_arguments",
        )
    return final


def _check_arguments_by_tool(final: dict[str, JSON], row: Approval) -> bool:
    """Return whether the tool is still offered; raise when the arguments are invalid.

    MCP servers are not asked again: their last known schema decides.
    """
    permissions, channel = Permissions.from_json(row.turn.permissions), turns.get_turn_channel(row.turn)
    tool = next(
        (tool for tool in registry.list_offered_tools(permissions, channel) if tool.name == row.tool), None
    )
    if tool is None:
        return tool_listing.check_offline_call(row.session.owner_id, permissions, row.tool, final)
    tool.bind(final)
    return True


def _restore_masked_secrets(submitted: JSON, original: JSON, shown: JSON) -> JSON:
    """Put back secrets that were masked for display, wherever a value came back as it was shown."""
    if submitted == shown:
        return original
    if isinstance(submitted, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restore_masked_secrets(value, original.get(key), shown.get(key))
            for key, value in submitted.items()
        }
    return submitted


# --- Events ------------------------------------------------------------------------------------------


def _build_decided_event(decision: ApprovalDecision) -> ApprovalDecided:
    return ApprovalDecided(
        approval_id=str(decision.approval_id),
        state=decision.state,
        by="user",
        edited=decision.final_arguments is not None,
    )


def _publish_decisions(
    user_id: int,
    rows: dict[UUID, Approval],
    decided: Sequence[ApprovalDecided],
    resumed: Sequence[ResumedTurn],
) -> None:
    for turn in resumed:
        take_lease_for_resumed(turn)
    for session_id in {row.session_id for row in rows.values()}:
        events: list[tuple[Event, str | None]] = []
        for event in decided:
            row = rows[UUID(event.approval_id)]
            if row.session_id == session_id:
                events.append((event, str(row.turn_id)))
        for turn in resumed:
            if turn.session_id == session_id:
                events += build_resumed_events(turn)
        publish_events(session_id, user_id, events)


def take_lease_for_resumed(resumed: ResumedTurn) -> None:
    try:
        lease.take_over_lease(
            str(resumed.session_id),
            turn_id=str(resumed.turn_id),
            token=str(resumed.token),
            fence=resumed.fence,
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("lease_not_taken", session_id=resumed.session_id, turn_id=resumed.turn_id)


def build_resumed_events(resumed: ResumedTurn) -> list[tuple[Event, str | None]]:
    turn = Turn.objects.only("origin", "run_ids").get(pk=resumed.turn_id)
    return [
        (TurnQueued(origin=turn.origin, run_ids=list(turn.run_ids)), str(resumed.turn_id)),
        (selectors.build_session_changed(resumed.session_id, "running"), None),
    ]
