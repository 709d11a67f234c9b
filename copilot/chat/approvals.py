"""Request, decide and close approvals of tool calls, and count what sessions spend without asking.

Only this module writes Approval and `Session.auto_approve_spent`. Code that decides, abandons, cancels or expires
an approval locks the paused turn first (`turn_transitions.lock_paused_turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest, Now

from config.core.errors import Conflict, FenceLost, NotFound, TurnConflict
from config.core.json_values import JSON
from copilot import signals
from copilot.chat import turn_transitions, turns
from copilot.models import Approval, Message, Session, Turn
from copilot.realtime.payloads import AutoApprovePayload

REQUESTED, APPROVED, REJECTED = Approval.State.REQUESTED, Approval.State.APPROVED, Approval.State.REJECTED
ABANDONED, CANCELLED = Approval.State.ABANDONED, Approval.State.CANCELLED
RUNNING, DONE = Approval.State.RUNNING, Approval.State.DONE

ALLOWED_TRANSITIONS = {
    APPROVED: (REQUESTED,),
    REJECTED: (REQUESTED,),
    ABANDONED: (REQUESTED,),
    CANCELLED: (REQUESTED, APPROVED, RUNNING),
    RUNNING: (APPROVED,),
    DONE: (RUNNING,),
}
OPEN_STATES = (REQUESTED, APPROVED, RUNNING)
MAX_REASON_CHARACTERS = 500

NO_ESTIMATE_REASON = "Its cost can't be estimated."
NO_CAP_REASON = "It costs money, and no spending cap is set."
OVER_CAP_REASON = "It would go over the spending cap."


# --- Requesting --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ApprovalCandidate:
    """A tool call that may not run without approval."""

    call_id: str
    tool: str
    arguments: dict[str, JSON]
    reason: str
    manual_only: bool = False
    billable: bool = False
    estimate: int | None = None  # microdollars
    block_reason: str = ""  # why the session's automatic approval did not cover it
    pinned: dict[str, JSON] | None = None  # ids and versions that the arguments referred to


@dataclass(frozen=True, kw_only=True)
class AutoApprovalResult:
    """By call id: the approvals given automatically, and why the others were not."""

    approved: dict[str, UUID]
    refused: dict[str, str]


def approve_automatically(
    turn_id: UUID, fence: int, candidates: Sequence[ApprovalCandidate]
) -> AutoApprovalResult:
    with transaction.atomic():
        turn = Turn.objects.running().select_for_update().filter(pk=turn_id, fence=fence).first()
        if turn is None:
            raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
        is_enabled = get_auto_approve(Session.objects.select_related("root").get(pk=turn.session_id)).enabled
        result = AutoApprovalResult(approved={}, refused={})
        for candidate in candidates:
            if not is_enabled or candidate.manual_only:
                result.refused[candidate.call_id] = ""
            elif (reason := _reserve_estimate(turn.session_id, candidate)) != "":
                result.refused[candidate.call_id] = reason
            else:
                row = _build_approval(turn, candidate, state=APPROVED, automatic=True, decided_at=Now())
                row.save(force_insert=True)
                result.approved[candidate.call_id] = row.pk
    return result


def request_approvals(turn_id: UUID, fence: int, candidates: Sequence[ApprovalCandidate]) -> list[Approval]:
    """Pause the turn and ask about these calls; without any, it waits only for the caller of the API."""
    with transaction.atomic():
        turn_transitions.pause_turn(turn_id, fence)
        turn = Turn.objects.get(pk=turn_id)
        Approval.objects.bulk_create(
            _build_approval(turn, candidate, state=REQUESTED, position=position)
            for position, candidate in enumerate(candidates)
        )
        if candidates:
            signals.send_turn_signal(signals.turn_awaits_person, turn_id, turn.origin)
    return list_requested_approvals(turn_id, fence)


def is_turn_paused(turn_id: UUID, fence: int) -> bool:
    return Turn.objects.waiting().filter(pk=turn_id, fence=fence).exists()


def list_requested_approvals(turn_id: UUID, fence: int) -> list[Approval]:
    rows = Approval.objects.filter(turn=turn_id, turn__fence=fence, turn__status=turns.WAITING)
    return list(rows.filter(state=REQUESTED).order_by("position"))


def _build_approval(turn: Turn, candidate: ApprovalCandidate, **fields: object) -> Approval:
    reserves = candidate.billable and fields["state"] == APPROVED
    return Approval(
        turn=turn,
        session_id=turn.session_id,
        call_id=candidate.call_id,
        tool=candidate.tool,
        arguments=candidate.arguments,
        reason=candidate.reason[:MAX_REASON_CHARACTERS],
        block_reason=candidate.block_reason[:MAX_REASON_CHARACTERS],
        estimate_microdollars=candidate.estimate,
        billable=candidate.billable,
        manual_only=candidate.manual_only,
        pinned=candidate.pinned,
        reserved_microdollars=candidate.estimate or 0 if reserves else 0,
        **fields,
    )


# --- Running approved calls --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CallDecision:
    """The decision about a call of a turn that resumes."""

    call_id: str
    state: str
    arguments: dict[str, JSON]  # as decided: the model's, or the person's
    edited: bool
    feedback: str


def get_call_decisions(turn_id: UUID) -> dict[str, CallDecision]:
    return {
        row.call_id: CallDecision(
            call_id=row.call_id,
            state=row.state,
            arguments=row.arguments if row.final_arguments is None else row.final_arguments,
            edited=row.final_arguments is not None,
            feedback=row.feedback,
        )
        for row in Approval.objects.filter(turn=turn_id)
    }


def start_approved_call(turn_id: UUID, fence: int, call_id: str) -> None:
    """Mark the call as running. If its worker is lost after this, the call never runs a second time."""
    started = Approval.objects.filter(
        turn=turn_id, call_id=call_id, state=APPROVED, turn__fence=fence, turn__status=turns.RUNNING
    ).update(state=RUNNING)
    if not started:
        raise FenceLost(f"call {call_id} of turn {turn_id} is not held under fence {fence}")


def get_pinned_target(turn_id: UUID, call_id: str) -> dict[str, JSON] | None:
    """Return what a call referred to when it was approved; None when a person edited its arguments."""
    row = Approval.objects.filter(turn=turn_id, call_id=call_id).only("pinned", "final_arguments").first()
    return row.pinned if row is not None and row.final_arguments is None else None


def finish_approved_call(turn_id: UUID, call_id: str, *, cost_microdollars: int | None = None) -> None:
    """Finish the call, and replace its reservation by what it cost.

    Without a figure the estimate counts. A call that failed before it started cost nothing.
    """
    with transaction.atomic():
        locked_rows = Approval.objects.select_for_update().filter(turn=turn_id, call_id=call_id)
        row = locked_rows.filter(state__in=(APPROVED, RUNNING)).first()
        if row is None:
            return  # finished already
        started = row.state == RUNNING
        cost = row.reserved_microdollars if cost_microdollars is None else cost_microdollars
        cost = cost if started else 0
        _change_state(row, DONE if started else CANCELLED, reserved_microdollars=cost)
        _add_to_spent(row.session_id, cost - row.reserved_microdollars)


# --- Deciding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ApprovalDecision:
    approval_id: UUID
    approve: bool
    final_arguments: dict[str, JSON] | None = None  # only when they differ from the model's
    feedback: str = ""

    @property
    def state(self) -> Literal["approved", "rejected"]:
        return "approved" if self.approve else "rejected"


@dataclass(frozen=True, kw_only=True)
class ResumedTurn:
    turn_id: UUID
    session_id: UUID
    token: UUID
    fence: int


def list_pending_approvals(user_id: int, *, after: UUID | None, limit: int) -> list[Approval]:
    """Return the owner's open approvals, oldest first; an unknown `after` raises NotFound."""
    rows = Approval.objects.visible_to(user_id).requested().filter(turn__status=turns.WAITING)
    if after is not None:
        last = Approval.objects.visible_to(user_id).filter(pk=after).first()
        if last is None:
            raise NotFound
        rows = rows.filter(Q(created_at__gt=last.created_at) | Q(created_at=last.created_at, pk__gt=after))
    return list(rows.select_related("session").order_by("created_at", "pk")[:limit])


def get_owned_approvals(user_id: int, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
    """Return the owner's approvals; raise NotFound for unknown ones and for those of others alike."""
    rows = Approval.objects.visible_to(user_id).filter(pk__in=approval_ids).select_related("turn")
    found = {row.pk: row for row in rows}
    if len(found) != len(set(approval_ids)):
        raise NotFound
    return found


def record_decisions(
    user_id: int, decisions: Sequence[ApprovalDecision], *, may_resume: Callable[[UUID], None]
) -> list[ResumedTurn]:
    """Record all decisions or none, and resume the turns with nothing left to decide.

    `may_resume` raises to refuse.
    """
    rows = get_owned_approvals(user_id, [decision.approval_id for decision in decisions])
    resumed = []
    with transaction.atomic():
        paused_turns = {
            turn_id: turn_transitions.lock_paused_turn(turn_id=turn_id)
            for turn_id in _turn_ids_in_lock_order(rows.values())
        }
        for decision in decisions:
            row = rows[decision.approval_id]
            _record_decision(row, decision, user_id, paused_turns[row.turn_id])
        for paused in paused_turns.values():
            assert paused is not None  # otherwise the first of its decisions raised Conflict
            if not Approval.objects.requested().filter(turn=paused.turn_id).exists() and not (
                list_open_client_calls(paused.turn_id)
            ):
                may_resume(paused.turn_id)
                resumed.append(resume_paused_turn(paused))
    return resumed


def resume_paused_turn(paused: turn_transitions.PausedTurn) -> ResumedTurn:
    fence = turn_transitions.resume_turn(paused.turn_id, paused.fence)
    return ResumedTurn(turn_id=paused.turn_id, session_id=paused.session_id, token=paused.token, fence=fence)


def list_open_client_calls(turn_id: UUID) -> list[Message]:
    """Return the calls of the turn that the API's caller has not answered yet, in order."""
    rows = Message.objects.filter(turn=turn_id, hidden="")
    answered = rows.filter(kind=Message.Kind.TOOL_RESULT).values("call_id")
    calls = rows.filter(kind=Message.Kind.TOOL_CALL, data__of_client=True).exclude(call_id__in=answered)
    return list(calls.order_by("sequence"))


def _turn_ids_in_lock_order(rows: Collection[Approval]) -> list[UUID]:
    """Sort the turns, so that two requests that lock several of them cannot deadlock."""
    return sorted({row.turn_id for row in rows})


def _record_decision(
    row: Approval, decision: ApprovalDecision, user_id: int, paused: turn_transitions.PausedTurn | None
) -> None:
    row.refresh_from_db()
    if paused is None or paused.is_stopping or row.state != REQUESTED:
        state = CANCELLED if row.state == REQUESTED else row.state
        raise Conflict("This call has already been decided.", code="approval_closed", state=state)
    reserves = decision.approve and row.billable and row.estimate_microdollars is not None
    reserved = row.estimate_microdollars or 0 if reserves else 0
    _change_state(
        row,
        APPROVED if decision.approve else REJECTED,
        final_arguments=decision.final_arguments,
        feedback=decision.feedback,
        decided_by_id=user_id,
        decided_at=Now(),
        reserved_microdollars=reserved,
    )
    # A person may go over the cap; automatic approvals after that may not.
    _add_to_spent(row.session_id, reserved)


# --- Closing without a decision ----------------------------------------------------------------------


def close_approvals(
    turn_id: UUID, state: Literal["abandoned", "cancelled"], feedback: str = ""
) -> list[Approval]:
    """Close all open approvals of a turn; calls that have not started give back what they reserved."""
    closed = []
    with transaction.atomic():
        for row in (
            Approval.objects.select_for_update().filter(turn=turn_id, state__in=OPEN_STATES).order_by("pk")
        ):
            started = row.state == RUNNING
            refund = 0 if started else row.reserved_microdollars
            new_state = Approval.State(state) if row.state == REQUESTED else CANCELLED
            fields = {"decided_at": Now(), "feedback": feedback} if row.state == REQUESTED else {}
            _change_state(row, new_state, reserved_microdollars=row.reserved_microdollars - refund, **fields)
            _add_to_spent(row.session_id, -refund)
            row.state = new_state
            closed.append(row)
    return closed


def list_expired_turns(older_than_seconds: float) -> list[UUID]:
    """Return turns that have waited too long for a person, or for the caller of the API."""
    before = Now() - timedelta(seconds=older_than_seconds)
    asked = Approval.objects.requested().filter(turn__status=turns.WAITING, created_at__lt=before)
    unanswered = Turn.objects.waiting().filter(paused_at__lt=before)
    return list(
        dict.fromkeys(
            [*asked.values_list("turn_id", flat=True)[:200], *unanswered.values_list("pk", flat=True)[:200]]
        )
    )


# --- Automatic approval ------------------------------------------------------------------------------

_UPDATE_AUTO_APPROVE = """
UPDATE copilot_session SET auto_approve = %(enabled)s, auto_approve_cap = %(cap)s,
       auto_approve_children = %(enabled)s AND %(children)s,
       auto_approve_spent = CASE WHEN auto_approve OR NOT %(enabled)s THEN auto_approve_spent ELSE COALESCE(
           (SELECT SUM(a.reserved_microdollars) FROM copilot_approval a JOIN copilot_session c ON c.id = a.session_id
            WHERE %(session)s IN (c.root_id, c.id) AND a.state IN ('approved', 'running')), 0) END
WHERE id = %(session)s AND owner_id = %(owner)s AND deleted_at IS NULL
"""


def set_auto_approve(
    owner_id: int,
    session_id: UUID,
    *,
    enabled: bool,
    cap_microdollars: int | None = None,
    sub_sessions: bool = False,
) -> None:
    """Switch automatic approval on or off. Spending counts from the moment it is switched on."""
    with connection.cursor() as cursor:
        cursor.execute(
            _UPDATE_AUTO_APPROVE,
            {
                "session": session_id,
                "owner": owner_id,
                "enabled": enabled,
                "cap": cap_microdollars,
                "children": sub_sessions,
            },
        )
        if not cursor.rowcount:
            raise NotFound


# --- State changes and spending ----------------------------------------------------------------------


def _change_state(row: Approval, to: Approval.State, **fields: object) -> None:
    moved = Approval.objects.filter(pk=row.pk, state__in=ALLOWED_TRANSITIONS[to]).update(state=to, **fields)
    if not moved:
        raise TurnConflict(f"approval {row.pk} cannot become {to}")


def _reserve_estimate(session_id: UUID, candidate: ApprovalCandidate) -> str:
    if not candidate.billable:
        return ""
    if candidate.estimate is None:
        return NO_ESTIMATE_REASON
    remaining = compute_remaining_cap(_lock_session_with_caps(session_id))
    if remaining is None:
        return NO_CAP_REASON
    if candidate.estimate > remaining:
        return OVER_CAP_REASON
    _add_to_spent(session_id, candidate.estimate)
    return ""


def _lock_session_with_caps(session_id: UUID) -> Session:
    """Lock the session and its root for this transaction, so that nobody else spends from their caps."""
    rows = Session.objects.select_for_update(no_key=True)
    *above, own = _sessions_to_charge(session_id)
    root = rows.get(pk=above[0]) if above else None
    session = rows.get(pk=own)
    session.root = root
    return session


def _add_to_spent(session_id: UUID, amount: int) -> None:
    if amount:
        for charged_id in _sessions_to_charge(session_id):
            rows = Session.objects.filter(pk=charged_id)
            rows.update(auto_approve_spent=Greatest(F("auto_approve_spent") + amount, 0))


def _sessions_to_charge(session_id: UUID) -> list[UUID]:
    """Return the session after its root, if it has one: in this order, so that locks cannot deadlock."""
    root_id = Session.objects.only("root_id").get(pk=session_id).root_id
    return [session_id] if root_id is None else [root_id, session_id]


def get_auto_approve(session: Session) -> AutoApprovePayload:
    """Return the session's automatic approval; a root session may switch it on for its sub-sessions."""
    return AutoApprovePayload(
        enabled=session.auto_approve or _is_shared_by_root(session),
        cap_microdollars=min((cap for cap, _ in _list_caps(session)), default=session.auto_approve_cap),
        sub_sessions=session.auto_approve_children,
        inherited=_is_shared_by_root(session),
    )


def get_remaining_cap(session_id: UUID) -> int | None:
    return compute_remaining_cap(Session.objects.select_related("root").get(pk=session_id))


def compute_remaining_cap(session: Session) -> int | None:
    return min((max(0, cap - taken) for cap, taken in _list_caps(session)), default=None)


def _list_caps(session: Session) -> list[tuple[int, int]]:
    """List each cap that applies here and what is spent of it; none when paid calls were not allowed here.

    A sub-session spends from a cap of its own, or from its root's where that is shared. Together they never
    spend more than their root may.
    """
    if not _is_shared_by_root(session) and (not session.auto_approve or session.auto_approve_cap is None):
        return []
    charged = [session] if session.root is None else [session.root, session]
    return [
        (member.auto_approve_cap, member.auto_approve_spent)
        for member in charged
        if member.auto_approve and member.auto_approve_cap is not None
    ]


def _is_shared_by_root(session: Session) -> bool:
    root = session.root
    return root is not None and root.auto_approve and root.auto_approve_children
