"""Calls that need a person's word: asked for once, decided once, accounted for once (A11).

The only writer of Approval, and of what sessions spend without being asked (`Session.auto_approve_taken`).
Whoever decides, abandons, cancels or lets expire holds the turn's row first (`turns.hold_waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Greatest, Now

from config.core.errors import Conflict, FenceLost, NotFound, TurnConflict
from config.core.json_values import JSON
from copilot.chat import turn_hooks, turn_transitions, turns
from copilot.models import Approval, Session, Turn
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

NO_ESTIMATE_REASON = "Nobody can tell what it will cost."
NO_CAP_REASON = "It costs money, and no cap is set."
OVER_CAP_REASON = "It would cost more than the cap leaves."


# --- a reply's calls ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ApprovalCandidate:
    """A call that may not run unasked."""

    call_id: str
    tool: str
    arguments: dict[str, JSON]
    reason: str
    manual_only: bool = False
    billable: bool = False
    estimate: int | None = None  # microdollars
    block_reason: str = ""  # why it was not approved by itself, where the session approves by itself
    pinned: dict[str, JSON] | None = None  # what the arguments mean, by ids and versions


@dataclass(frozen=True, kw_only=True)
class AutoApprovalResult:
    """By call id: what was approved without asking, and why the others were not."""

    approved: dict[str, UUID]
    refused: dict[str, str]


def approve_automatically(
    turn_id: UUID, fence: int, wanted: Sequence[ApprovalCandidate]
) -> AutoApprovalResult:
    """Approve by itself what the session allows (A11.11)."""
    with transaction.atomic():
        turn = Turn.objects.select_for_update().filter(pk=turn_id, fence=fence, status=turns.RUNNING).first()
        if turn is None:
            raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
        by_itself = get_auto_approve(Session.objects.select_related("root").get(pk=turn.session_id)).enabled
        admitted = AutoApprovalResult(approved={}, refused={})
        for one in wanted:
            if not by_itself or one.manual_only:
                admitted.refused[one.call_id] = ""
            elif (why := _reserve_estimate(turn.session_id, one)) != "":
                admitted.refused[one.call_id] = why
            else:
                row = _build_approval(turn, one, state=APPROVED, automatic=True, decided_at=Now())
                row.save(force_insert=True)
                admitted.approved[one.call_id] = row.pk
    return admitted


def request_approvals(turn_id: UUID, fence: int, wanted: Sequence[ApprovalCandidate]) -> list[Approval]:
    """Write all requests and let the turn wait, in one transaction (A11.3)."""
    with transaction.atomic():
        turn_transitions.pause_turn(turn_id, fence)
        turn = Turn.objects.get(pk=turn_id)
        Approval.objects.bulk_create(
            _build_approval(turn, one, state=REQUESTED, position=place) for place, one in enumerate(wanted)
        )
        turn_hooks.call_turn_hooks_on_commit(turn_id, turn.origin, "asked")
    return list_requested_approvals(turn_id, fence)


def list_requested_approvals(turn_id: UUID, fence: int) -> list[Approval]:
    """What the turn waits for under this fence, in the order of the calls."""
    rows = Approval.objects.filter(turn=turn_id, turn__fence=fence, turn__status=turns.WAITING)
    return list(rows.filter(state=REQUESTED).order_by("position"))


def _build_approval(turn: Turn, one: ApprovalCandidate, **fields: object) -> Approval:
    reserves = one.billable and fields["state"] == APPROVED
    return Approval(
        turn=turn,
        session_id=turn.session_id,
        call_id=one.call_id,
        tool=one.tool,
        arguments=one.arguments,
        reason=one.reason[:MAX_REASON_CHARACTERS],
        block_reason=one.block_reason[:MAX_REASON_CHARACTERS],
        estimate_microdollars=one.estimate,
        billable=one.billable,
        manual_only=one.manual_only,
        pinned=one.pinned,
        reserved_microdollars=one.estimate or 0 if reserves else 0,
        **fields,
    )


# --- running an approved call ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CallDecision:
    """What was decided about a call of a turn that goes on."""

    call_id: str
    state: str
    arguments: dict[str, JSON]  # as it runs
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
    """The call runs from now on: a worker lost after this is never a reason to run it again (A11.10)."""
    begun = Approval.objects.filter(
        turn=turn_id, call_id=call_id, state=APPROVED, turn__fence=fence, turn__status=turns.RUNNING
    ).update(state=RUNNING)
    if not begun:
        raise FenceLost(f"the call {call_id} of turn {turn_id} is not ours to run")


def get_pinned_target(turn_id: UUID, call_id: str) -> dict[str, JSON] | None:
    """What a call meant when it was approved; None when a person wrote its arguments anew."""
    row = Approval.objects.filter(turn=turn_id, call_id=call_id).only("pinned", "final_arguments").first()
    return row.pinned if row is not None and row.final_arguments is None else None


def finish_approved_call(turn_id: UUID, call_id: str, *, cost_microdollars: int | None = None) -> None:
    """The call has its result, and its reservation becomes what it cost (A11.11).

    Without a figure the estimate counts; one that failed before it started cost nothing.
    """
    with transaction.atomic():
        standing = Approval.objects.select_for_update().filter(turn=turn_id, call_id=call_id)
        row = standing.filter(state__in=(APPROVED, RUNNING)).first()
        if row is None:
            return  # a second try of the same
        started = row.state == RUNNING
        cost = row.reserved_microdollars if cost_microdollars is None else cost_microdollars
        cost = cost if started else 0
        _change_state(row, DONE if started else CANCELLED, reserved_microdollars=cost)
        _add_to_spent(row.session_id, cost - row.reserved_microdollars)


# --- deciding ----------------------------------------------------------------------------------------


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


def get_owned_approvals(user_id: int, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
    """The owner's own requests; foreign and unknown ones look the same."""
    rows = Approval.objects.filter(
        pk__in=approval_ids, session__owner_id=user_id, session__deleted_at=None
    ).select_related("turn")
    found = {row.pk: row for row in rows}
    if len(found) != len(set(approval_ids)):
        raise NotFound
    return found


def record_decisions(
    user_id: int, decisions: Sequence[ApprovalDecision], *, may_resume: Callable[[UUID], None]
) -> list[ResumedTurn]:
    """Take all decisions or none; turns with nothing left to decide go on. `may_resume` raises to refuse (B7)."""
    rows = get_owned_approvals(user_id, [one.approval_id for one in decisions])
    resumed = []
    with transaction.atomic():
        held = {
            turn_id: turn_transitions.lock_paused_turn(turn_id=turn_id)
            for turn_id in _turn_ids_in_lock_order(rows.values())
        }
        for one in decisions:
            row = rows[one.approval_id]
            _record_decision(row, one, user_id, held[row.turn_id])
        for paused in held.values():
            assert paused is not None  # else the first of its decisions was a conflict
            if not Approval.objects.filter(turn=paused.turn_id, state=REQUESTED).exists():
                may_resume(paused.turn_id)
                fence = turn_transitions.resume_turn(paused.turn_id, paused.fence)
                resumed.append(
                    ResumedTurn(
                        turn_id=paused.turn_id, session_id=paused.session_id, token=paused.token, fence=fence
                    )
                )
    return resumed


def _turn_ids_in_lock_order(rows: Collection[Approval]) -> list[UUID]:
    """One order for everybody who locks several turns."""
    return sorted({row.turn_id for row in rows})


def _record_decision(
    row: Approval, decision: ApprovalDecision, user_id: int, paused: turn_transitions.PausedTurn | None
) -> None:
    row.refresh_from_db()
    if paused is None or paused.is_stopping or row.state != REQUESTED:
        state = CANCELLED if row.state == REQUESTED else row.state
        raise Conflict("This call is decided already.", code="approval_closed", state=state)
    counts = decision.approve and row.billable and row.estimate_microdollars is not None
    reserved = row.estimate_microdollars or 0 if counts else 0
    _change_state(
        row,
        APPROVED if decision.approve else REJECTED,
        final_arguments=decision.final_arguments,
        feedback=decision.feedback,
        decided_by_id=user_id,
        decided_at=Now(),
        reserved_microdollars=reserved,
    )
    _add_to_spent(
        row.session_id, reserved
    )  # a person may go over the cap; what follows then may not (A11.11)


# --- closing without a decision ----------------------------------------------------------------------


def close_approvals(turn_id: UUID, state: Literal["abandoned", "cancelled"], why: str = "") -> list[Approval]:
    """Nobody decides any more; what was approved and has not run gives back what it reserved (A11.8, A11.9)."""
    closed = []
    with transaction.atomic():
        for row in (
            Approval.objects.select_for_update().filter(turn=turn_id, state__in=OPEN_STATES).order_by("pk")
        ):
            started = row.state == RUNNING
            given_back = 0 if started else row.reserved_microdollars
            to = Approval.State(state) if row.state == REQUESTED else CANCELLED
            fields = {"decided_at": Now(), "feedback": why} if row.state == REQUESTED else {}
            _change_state(row, to, reserved_microdollars=row.reserved_microdollars - given_back, **fields)
            _add_to_spent(row.session_id, -given_back)
            row.state = to
            closed.append(row)
    return closed


def list_expired_turns(older_than_seconds: float) -> list[UUID]:
    """Turns that have waited too long for somebody's word."""
    rows = Approval.objects.filter(state=REQUESTED, turn__status=turns.WAITING).extra(
        where=["copilot_approval.created_at < now() - %s * interval '1 second'"], params=[older_than_seconds]
    )
    return list(rows.values_list("turn_id", flat=True).distinct()[:200])


# --- approving by itself -----------------------------------------------------------------------------

_UPDATE_AUTO_APPROVE = """
UPDATE copilot_session SET auto_approve = %(enabled)s, auto_approve_cap = %(cap)s,
       auto_approve_children = %(enabled)s AND %(children)s,
       auto_approve_taken = CASE WHEN auto_approve OR NOT %(enabled)s THEN auto_approve_taken ELSE COALESCE(
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
    """Switch a session's own approving on or off; what it may spend counts from the moment it is switched on."""
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


# --- moves and money ---------------------------------------------------------------------------------


def _change_state(row: Approval, to: Approval.State, **fields: object) -> None:
    """One conditional update that names where it may come from."""
    moved = Approval.objects.filter(pk=row.pk, state__in=ALLOWED_TRANSITIONS[to]).update(state=to, **fields)
    if not moved:
        raise TurnConflict(f"approval {row.pk} cannot become {to}")


def _reserve_estimate(session_id: UUID, one: ApprovalCandidate) -> str:
    """Set the estimate aside, if the caps leave room; else why not."""
    if not one.billable:
        return ""
    if one.estimate is None:
        return NO_ESTIMATE_REASON
    left = compute_remaining_cap(_lock_session_with_caps(session_id))
    if left is None:
        return NO_CAP_REASON
    if one.estimate > left:
        return OVER_CAP_REASON
    _add_to_spent(session_id, one.estimate)
    return ""


def _lock_session_with_caps(session_id: UUID) -> Session:
    """With the rows of its caps locked until the transaction ends: nobody takes from them meanwhile (A11.11)."""
    rows = Session.objects.select_for_update(no_key=True)
    *above, own = _sessions_to_charge(session_id)
    root = rows.get(pk=above[0]) if above else None
    session = rows.get(pk=own)
    session.root = root
    return session


def _add_to_spent(session_id: UUID, amount: int) -> None:
    if amount:
        for account in _sessions_to_charge(session_id):
            rows = Session.objects.filter(pk=account)
            rows.update(auto_approve_taken=Greatest(F("auto_approve_taken") + amount, 0))


def _sessions_to_charge(session_id: UUID) -> list[UUID]:
    """Where it is counted: of a sub-session its root, always first, so that two never wait for each other."""
    root_id = Session.objects.only("root_id").get(pk=session_id).root_id
    return [session_id] if root_id is None else [root_id, session_id]


def get_auto_approve(session: Session) -> AutoApprovePayload:
    """Of a sub-session its root may have switched it on for the whole family (A21.3)."""
    return AutoApprovePayload(
        enabled=session.auto_approve or _is_shared_by_root(session),
        cap_microdollars=min((cap for cap, _ in _list_caps(session)), default=session.auto_approve_cap),
        sub_sessions=session.auto_approve_children,
        inherited=_is_shared_by_root(session),
    )


def get_remaining_cap(session_id: UUID) -> int | None:
    return compute_remaining_cap(Session.objects.select_related("root").get(pk=session_id))


def compute_remaining_cap(session: Session) -> int | None:
    """What may still be spent unasked; None without a cap."""
    return min((max(0, cap - taken) for cap, taken in _list_caps(session)), default=None)


def _list_caps(session: Session) -> list[tuple[int, int]]:
    """Each cap that binds here and what is taken of it; none when nothing that costs was allowed here.

    A sub-session spends by a cap of its own, or by its root's where that is shared; and together they never spend
    more than their root may, whatever was allowed in one of them.
    """
    if not _is_shared_by_root(session) and (not session.auto_approve or session.auto_approve_cap is None):
        return []
    family = [session] if session.root is None else [session.root, session]
    return [
        (one.auto_approve_cap, one.auto_approve_taken)
        for one in family
        if one.auto_approve and one.auto_approve_cap is not None
    ]


def _is_shared_by_root(session: Session) -> bool:
    root = session.root
    return root is not None and root.auto_approve and root.auto_approve_children
