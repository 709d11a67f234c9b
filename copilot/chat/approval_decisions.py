"""People decide about calls that wait for them; with the last decision the turn goes on (A11.4–A11.7)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from uuid import UUID

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
from copilot.tools.argument_previews import redact_arguments
from copilot.tools.calls import canonicalize_json, describe_invalid_arguments, is_nested_too_deep
from copilot.tools.mcp import tool_listing

log = logging.getLogger(__name__)

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class DecisionResult:
    """What the doors are told: every decision that was taken, and the turns that go on."""

    approvals: list[ApprovalDecided]
    resumed: list[UUID]


def decide_approvals(
    user_id: int, decisions: Sequence[DecideApproval], *, scopes: frozenset[str] | None = None
) -> DecisionResult:
    """All of them or none; what is not mentioned stays open (A11.4). `scopes` are a key's; None is a person."""
    ids = [one.approval_id for one in decisions]
    if len(set(ids)) != len(ids):
        raise InvalidRequest("A call is decided once.")
    check_account_is_active(user_id)
    rows = approvals.get_owned_approvals(user_id, ids)
    _check_scopes(rows.values(), scopes)
    checked = [_build_decision(one, rows[one.approval_id]) for one in decisions]
    with ExitStack() as admitted:  # a refusal of one is a refusal of all: nothing stays held
        resumed = approvals.record_decisions(
            user_id, checked, may_resume=partial(_place_hold_again, user_id, admitted)
        )
        admitted.pop_all()
    told = [_build_decided_event(one) for one in checked]
    _publish_decisions(user_id, rows, told, resumed)
    for one in resumed:
        tasks.wake_worker(one.turn_id)
    return DecisionResult(approvals=told, resumed=[one.turn_id for one in resumed])


def _check_scopes(rows: Iterable[Approval], scopes: frozenset[str] | None) -> None:
    """What only a person may allow is decided by a person, or by a key that could do it without a model."""
    if scopes is None or "manage" in scopes:
        return
    for row in rows:
        tool = registry.find_tool(row.tool)
        if row.tool in SCOPE_TOOLS["manage"] or (tool is not None and tool.approval == "manual_only"):
            raise Forbidden(
                f"Deciding about {row.tool} needs a signed-in person or a key with the scope manage.",
                code="insufficient_scope",
                scope="manage",
            )


def _place_hold_again(user_id: int, admitted: ExitStack, turn_id: UUID) -> None:
    """A pause has let go of what was held for the turn (B6.7)."""
    check_limit_and_place_hold(user_id, turn_id)
    admitted.callback(release_hold, user_id, turn_id)


# --- what was given ----------------------------------------------------------------------------------


def _build_decision(given: DecideApproval, row: Approval) -> ApprovalDecision:
    return ApprovalDecision(
        approval_id=row.pk,
        approve=given.decision == "approve",
        final_arguments=_parse_final_arguments(given, row) if given.decision == "approve" else None,
        feedback=clean_feedback(given.feedback),
    )


def clean_feedback(text: str) -> str:
    """What a person wrote, without what terminals obey and without the server's voice (A11.7)."""
    text = _CONTROL_CHARACTERS.sub("", _TERMINAL_CODES.sub("", text))
    return clean_text(text).strip()


def _parse_final_arguments(given: DecideApproval, row: Approval) -> dict[str, JSON] | None:
    """The arguments as a person changed them, checked as the model's are; None when nothing was changed."""
    if given.arguments is None:
        return None
    if is_nested_too_deep(given.arguments):
        raise InvalidRequest("The arguments are nested too deeply.", code="invalid_arguments")
    final = canonicalize_json(
        _restore_masked_secrets(given.arguments, row.arguments, redact_arguments(row.arguments))
    )
    assert isinstance(final, dict)
    if final == row.arguments:
        return None
    try:
        known = _check_arguments_by_tool(final, row)
    except ValidationError as problem:
        raise InvalidRequest(describe_invalid_arguments(problem), code="invalid_arguments") from problem
    if not known:
        raise InvalidRequest(
            "The arguments of this tool cannot be changed: decide about the call as it is.",
            code="invalid_arguments",
        )
    return final


def _check_arguments_by_tool(final: dict[str, JSON], row: Approval) -> bool:
    """Whether the tool is still there; raises what is wrong with the arguments. MCP servers are not asked again."""
    permissions, channel = Permissions.from_json(row.turn.permissions), turns.get_turn_channel(row.turn)
    tool = next(
        (one for one in registry.list_offered_tools(permissions, channel) if one.name == row.tool), None
    )
    if tool is None:
        return tool_listing.check_offline_call(row.session.owner_id, permissions, row.tool, final)
    tool.bind(final)
    return True


def _restore_masked_secrets(given: JSON, original: JSON, shown: JSON) -> JSON:
    """Secrets were masked where they were shown: what comes back as it was shown means the original."""
    if given == shown:
        return original
    if isinstance(given, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restore_masked_secrets(value, original.get(key), shown.get(key))
            for key, value in given.items()
        }
    return given


# --- what follows ------------------------------------------------------------------------------------


def _build_decided_event(decision: ApprovalDecision) -> ApprovalDecided:
    return ApprovalDecided(
        approval_id=str(decision.approval_id),
        state=decision.state,
        by="user",
        edited=decision.final_arguments is not None,
    )


def _publish_decisions(
    user_id: int, rows: dict[UUID, Approval], told: Sequence[ApprovalDecided], resumed: Sequence[ResumedTurn]
) -> None:
    for one in resumed:
        _take_lease_for_resumed(one)
    for session_id in {row.session_id for row in rows.values()}:
        happened: list[tuple[Event, str | None]] = []
        for event in told:
            row = rows[UUID(event.approval_id)]
            if row.session_id == session_id:
                happened.append((event, str(row.turn_id)))
        for one in resumed:
            if one.session_id == session_id:
                happened += _build_resumed_events(one)
        publish_events(session_id, user_id, happened)


def _take_lease_for_resumed(resumed: ResumedTurn) -> None:
    """The session is the turn's again; should Redis be away, its worker takes it (T2.5)."""
    try:
        lease.take_over_lease(
            str(resumed.session_id),
            turn_id=str(resumed.turn_id),
            token=str(resumed.token),
            fence=resumed.fence,
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("the lease of turn %s could not be taken yet", resumed.turn_id)


def _build_resumed_events(resumed: ResumedTurn) -> list[tuple[Event, str | None]]:
    turn = Turn.objects.only("origin", "run_ids").get(pk=resumed.turn_id)
    return [
        (TurnQueued(origin=turn.origin, run_ids=list(turn.run_ids)), str(resumed.turn_id)),
        (selectors.build_session_changed(resumed.session_id, "running"), None),
    ]
