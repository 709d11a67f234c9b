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

from copilot import approvals, queries, tasks, turns
from copilot.approvals import Decision, Resumed
from copilot.commands import Decide, clean_text
from copilot.dispatch.limits import check_account, check_and_admit, let_go
from copilot.dispatch.telling import publish
from copilot.errors import Forbidden, InvalidRequest
from copilot.events import JSON, ApprovalDecided, Event, TurnQueued
from copilot.live import lease
from copilot.live.client import RedisDown
from copilot.models import Approval, Turn
from copilot.permissions import SCOPE_TOOLS, Permissions
from copilot.previews import redacted_arguments
from copilot.tools import mcp_offline, registry
from copilot.tools.calls import canonical, invalid_arguments, nested_too_deep

log = logging.getLogger(__name__)

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What the doors are told: every decision that was taken, and the turns that go on."""

    approvals: list[ApprovalDecided]
    resumed: list[UUID]


def decide(user_id: int, decisions: Sequence[Decide], *, scopes: frozenset[str] | None = None) -> Decided:
    """All of them or none; what is not mentioned stays open (A11.4). `scopes` are a key's; None is a person."""
    ids = [one.approval_id for one in decisions]
    if len(set(ids)) != len(ids):
        raise InvalidRequest("A call is decided once.")
    check_account(user_id)
    rows = approvals.of_owner(user_id, ids)
    _check_scopes(rows.values(), scopes)
    checked = [_checked(one, rows[one.approval_id]) for one in decisions]
    with ExitStack() as admitted:  # a refusal of one is a refusal of all: nothing stays held
        resumed = approvals.decide(user_id, checked, may_resume=partial(_readmit, user_id, admitted))
        admitted.pop_all()
    told = [_told(one) for one in checked]
    _tell(user_id, rows, told, resumed)
    for one in resumed:
        tasks.send(one.turn_id)
    return Decided(approvals=told, resumed=[one.turn_id for one in resumed])


def _check_scopes(rows: Iterable[Approval], scopes: frozenset[str] | None) -> None:
    """What only a person may allow is decided by a person, or by a key that could do it without a model."""
    if scopes is None or "manage" in scopes:
        return
    for row in rows:
        tool = registry.get(row.tool)
        if row.tool in SCOPE_TOOLS["manage"] or (tool is not None and tool.approval == "manual_only"):
            raise Forbidden(
                f"Deciding about {row.tool} needs a signed-in person or a key with the scope manage.",
                code="insufficient_scope",
                scope="manage",
            )


def _readmit(user_id: int, admitted: ExitStack, turn_id: UUID) -> None:
    """A pause has let go of what was held for the turn (B6.7)."""
    check_and_admit(user_id, turn_id)
    admitted.callback(let_go, user_id, turn_id)


# --- what was given ----------------------------------------------------------------------------------


def _checked(given: Decide, row: Approval) -> Decision:
    return Decision(
        approval_id=row.pk,
        approve=given.decision == "approve",
        final_arguments=_final_arguments(given, row) if given.decision == "approve" else None,
        feedback=clean_feedback(given.feedback),
    )


def clean_feedback(text: str) -> str:
    """What a person wrote, without what terminals obey and without the server's voice (A11.7)."""
    text = _CONTROL.sub("", _TERMINAL_CODES.sub("", text))
    return clean_text(text).strip()


def _final_arguments(given: Decide, row: Approval) -> dict[str, JSON] | None:
    """The arguments as a person changed them, checked as the model's are; None when nothing was changed."""
    if given.arguments is None:
        return None
    if nested_too_deep(given.arguments):
        raise InvalidRequest("The arguments are nested too deeply.", code="invalid_arguments")
    final = canonical(_unmasked(given.arguments, row.arguments, redacted_arguments(row.arguments)))
    assert isinstance(final, dict)
    if final == row.arguments:
        return None
    try:
        known = _judged(final, row)
    except ValidationError as problem:
        raise InvalidRequest(invalid_arguments(problem), code="invalid_arguments") from problem
    if not known:
        raise InvalidRequest(
            "The arguments of this tool cannot be changed: decide about the call as it is.",
            code="invalid_arguments",
        )
    return final


def _judged(final: dict[str, JSON], row: Approval) -> bool:
    """Whether the tool is still there; raises what is wrong with the arguments. MCP servers are not asked again."""
    permissions, channel = Permissions.from_json(row.turn.permissions), turns.channel_of(row.turn)
    tool = next((one for one in registry.offered(permissions, channel) if one.name == row.tool), None)
    if tool is None:
        return mcp_offline.check(row.session.owner_id, permissions, row.tool, final)
    tool.bind(final)
    return True


def _unmasked(given: JSON, original: JSON, shown: JSON) -> JSON:
    """Secrets were masked where they were shown: what comes back as it was shown means the original."""
    if given == shown:
        return original
    if isinstance(given, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {key: _unmasked(value, original.get(key), shown.get(key)) for key, value in given.items()}
    return given


# --- what follows ------------------------------------------------------------------------------------


def _told(decision: Decision) -> ApprovalDecided:
    return ApprovalDecided(
        approval_id=str(decision.approval_id),
        state=decision.state,
        by="user",
        edited=decision.final_arguments is not None,
    )


def _tell(
    user_id: int, rows: dict[UUID, Approval], told: Sequence[ApprovalDecided], resumed: Sequence[Resumed]
) -> None:
    for one in resumed:
        _take_session(one)
    for session_id in {row.session_id for row in rows.values()}:
        happened: list[tuple[Event, str | None]] = []
        for event in told:
            row = rows[UUID(event.approval_id)]
            if row.session_id == session_id:
                happened.append((event, str(row.turn_id)))
        for one in resumed:
            if one.session_id == session_id:
                happened += _queued(one)
        publish(session_id, user_id, happened)


def _take_session(resumed: Resumed) -> None:
    """The session is the turn's again; should Redis be away, its worker takes it (T2.5)."""
    try:
        lease.take_over(
            str(resumed.session_id),
            turn_id=str(resumed.turn_id),
            token=str(resumed.token),
            fence=resumed.fence,
        )
    except RedisDown:
        log.warning("the lease of turn %s could not be taken yet", resumed.turn_id)


def _queued(resumed: Resumed) -> list[tuple[Event, str | None]]:
    turn = Turn.objects.only("origin", "run_ids").get(pk=resumed.turn_id)
    return [
        (TurnQueued(origin=turn.origin, run_ids=list(turn.run_ids)), str(resumed.turn_id)),
        (queries.seen_from_afar(resumed.session_id, "running"), None),
    ]
