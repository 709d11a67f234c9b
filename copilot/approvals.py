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

from copilot import turns
from copilot.awaited import allowance, auto_approve_of
from copilot.errors import Conflict, FenceLost, NotFound, TurnConflict
from copilot.events import JSON
from copilot.models import Approval, Session, Turn

REQUESTED, APPROVED, REJECTED = Approval.State.REQUESTED, Approval.State.APPROVED, Approval.State.REJECTED
ABANDONED, CANCELLED = Approval.State.ABANDONED, Approval.State.CANCELLED
RUNNING, DONE = Approval.State.RUNNING, Approval.State.DONE

REACHED_FROM = {
    APPROVED: (REQUESTED,),
    REJECTED: (REQUESTED,),
    ABANDONED: (REQUESTED,),
    CANCELLED: (REQUESTED, APPROVED, RUNNING),
    RUNNING: (APPROVED,),
    DONE: (RUNNING,),
}
OPEN = (REQUESTED, APPROVED, RUNNING)
REASON_CHARACTERS = 500

NO_ESTIMATE = "Nobody can tell what it will cost."
NO_CAP = "It costs money, and no cap is set."
OVER_CAP = "It would cost more than the cap leaves."


# --- a reply's calls ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wanted:
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
class Admitted:
    """By call id: what was approved without asking, and why the others were not."""

    approved: dict[str, UUID]
    refused: dict[str, str]


def admit(turn_id: UUID, fence: int, wanted: Sequence[Wanted]) -> Admitted:
    """Approve by itself what the session allows (A11.11)."""
    with transaction.atomic():
        turn = Turn.objects.select_for_update().filter(pk=turn_id, fence=fence, status=turns.RUNNING).first()
        if turn is None:
            raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
        by_itself = auto_approve_of(Session.objects.select_related("root").get(pk=turn.session_id)).enabled
        admitted = Admitted(approved={}, refused={})
        for one in wanted:
            if not by_itself or one.manual_only:
                admitted.refused[one.call_id] = ""
            elif (why := _reserve(turn.session_id, one)) != "":
                admitted.refused[one.call_id] = why
            else:
                row = _row(turn, one, state=APPROVED, automatic=True, decided_at=Now())
                row.save(force_insert=True)
                admitted.approved[one.call_id] = row.pk
    return admitted


def request(turn_id: UUID, fence: int, wanted: Sequence[Wanted]) -> list[Approval]:
    """Write all requests and let the turn wait, in one transaction (A11.3)."""
    with transaction.atomic():
        turns.pause(turn_id, fence)
        turn = Turn.objects.get(pk=turn_id)
        Approval.objects.bulk_create(
            _row(turn, one, state=REQUESTED, position=place) for place, one in enumerate(wanted)
        )
        turns.tell(turn_id, turn.origin, "asked")
    return requested(turn_id, fence)


def requested(turn_id: UUID, fence: int) -> list[Approval]:
    """What the turn waits for under this fence, in the order of the calls."""
    rows = Approval.objects.filter(turn=turn_id, turn__fence=fence, turn__status=turns.WAITING)
    return list(rows.filter(state=REQUESTED).order_by("position"))


def _row(turn: Turn, one: Wanted, **fields: object) -> Approval:
    reserves = one.billable and fields["state"] == APPROVED
    return Approval(
        turn=turn,
        session_id=turn.session_id,
        call_id=one.call_id,
        tool=one.tool,
        arguments=one.arguments,
        reason=one.reason[:REASON_CHARACTERS],
        block_reason=one.block_reason[:REASON_CHARACTERS],
        estimate_microdollars=one.estimate,
        billable=one.billable,
        manual_only=one.manual_only,
        pinned=one.pinned,
        reserved_microdollars=one.estimate or 0 if reserves else 0,
        **fields,
    )


# --- running an approved call ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What was decided about a call of a turn that goes on."""

    call_id: str
    state: str
    arguments: dict[str, JSON]  # as it runs
    edited: bool
    feedback: str


def standings(turn_id: UUID) -> dict[str, Standing]:
    return {
        row.call_id: Standing(
            call_id=row.call_id,
            state=row.state,
            arguments=row.arguments if row.final_arguments is None else row.final_arguments,
            edited=row.final_arguments is not None,
            feedback=row.feedback,
        )
        for row in Approval.objects.filter(turn=turn_id)
    }


def begin(turn_id: UUID, fence: int, call_id: str) -> None:
    """The call runs from now on: a worker lost after this is never a reason to run it again (A11.10)."""
    begun = Approval.objects.filter(
        turn=turn_id, call_id=call_id, state=APPROVED, turn__fence=fence, turn__status=turns.RUNNING
    ).update(state=RUNNING)
    if not begun:
        raise FenceLost(f"the call {call_id} of turn {turn_id} is not ours to run")


def pinned_target(turn_id: UUID, call_id: str) -> dict[str, JSON] | None:
    """What a call meant when it was approved; None when a person wrote its arguments anew."""
    row = Approval.objects.filter(turn=turn_id, call_id=call_id).only("pinned", "final_arguments").first()
    return row.pinned if row is not None and row.final_arguments is None else None


def finish(turn_id: UUID, call_id: str, *, cost_microdollars: int | None = None) -> None:
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
        _move(row, DONE if started else CANCELLED, reserved_microdollars=cost)
        _account(row.session_id, cost - row.reserved_microdollars)


# --- deciding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decision:
    approval_id: UUID
    approve: bool
    final_arguments: dict[str, JSON] | None = None  # only when they differ from the model's
    feedback: str = ""

    @property
    def state(self) -> Literal["approved", "rejected"]:
        return "approved" if self.approve else "rejected"


@dataclass(frozen=True, kw_only=True)
class Resumed:
    turn_id: UUID
    session_id: UUID
    token: UUID
    fence: int


def of_owner(user_id: int, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
    """The owner's own requests; foreign and unknown ones look the same."""
    rows = Approval.objects.filter(
        pk__in=approval_ids, session__owner_id=user_id, session__deleted_at=None
    ).select_related("turn")
    found = {row.pk: row for row in rows}
    if len(found) != len(set(approval_ids)):
        raise NotFound
    return found


def decide(
    user_id: int, decisions: Sequence[Decision], *, may_resume: Callable[[UUID], None]
) -> list[Resumed]:
    """Take all decisions or none; turns with nothing left to decide go on. `may_resume` raises to refuse (B7)."""
    rows = of_owner(user_id, [one.approval_id for one in decisions])
    resumed = []
    with transaction.atomic():
        held = {turn_id: turns.hold_waiting(turn_id=turn_id) for turn_id in _ordered(rows.values())}
        for one in decisions:
            row = rows[one.approval_id]
            _decide(row, one, user_id, held[row.turn_id])
        for paused in held.values():
            assert paused is not None  # else the first of its decisions was a conflict
            if not Approval.objects.filter(turn=paused.turn_id, state=REQUESTED).exists():
                may_resume(paused.turn_id)
                fence = turns.resume(paused.turn_id, paused.fence)
                resumed.append(
                    Resumed(
                        turn_id=paused.turn_id, session_id=paused.session_id, token=paused.token, fence=fence
                    )
                )
    return resumed


def _ordered(rows: Collection[Approval]) -> list[UUID]:
    """One order for everybody who locks several turns."""
    return sorted({row.turn_id for row in rows})


def _decide(row: Approval, decision: Decision, user_id: int, paused: turns.Paused | None) -> None:
    row.refresh_from_db()
    if paused is None or paused.stopping or row.state != REQUESTED:
        state = CANCELLED if row.state == REQUESTED else row.state
        raise Conflict("This call is decided already.", code="approval_closed", state=state)
    counts = decision.approve and row.billable and row.estimate_microdollars is not None
    reserved = row.estimate_microdollars or 0 if counts else 0
    _move(
        row,
        APPROVED if decision.approve else REJECTED,
        final_arguments=decision.final_arguments,
        feedback=decision.feedback,
        decided_by_id=user_id,
        decided_at=Now(),
        reserved_microdollars=reserved,
    )
    _account(row.session_id, reserved)  # a person may go over the cap; what follows then may not (A11.11)


# --- closing without a decision ----------------------------------------------------------------------


def close(turn_id: UUID, state: Literal["abandoned", "cancelled"], why: str = "") -> list[Approval]:
    """Nobody decides any more; what was approved and has not run gives back what it reserved (A11.8, A11.9)."""
    closed = []
    with transaction.atomic():
        for row in Approval.objects.select_for_update().filter(turn=turn_id, state__in=OPEN).order_by("pk"):
            started = row.state == RUNNING
            given_back = 0 if started else row.reserved_microdollars
            to = Approval.State(state) if row.state == REQUESTED else CANCELLED
            fields = {"decided_at": Now(), "feedback": why} if row.state == REQUESTED else {}
            _move(row, to, reserved_microdollars=row.reserved_microdollars - given_back, **fields)
            _account(row.session_id, -given_back)
            row.state = to
            closed.append(row)
    return closed


def expired(older_than_seconds: float) -> list[UUID]:
    """Turns that have waited too long for somebody's word."""
    rows = Approval.objects.filter(state=REQUESTED, turn__status=turns.WAITING).extra(
        where=["copilot_approval.created_at < now() - %s * interval '1 second'"], params=[older_than_seconds]
    )
    return list(rows.values_list("turn_id", flat=True).distinct()[:200])


# --- approving by itself -----------------------------------------------------------------------------

_ALLOW = """
UPDATE copilot_session SET auto_approve = %(enabled)s, auto_approve_cap = %(cap)s,
       auto_approve_children = %(enabled)s AND %(children)s,
       auto_approve_taken = CASE WHEN auto_approve OR NOT %(enabled)s THEN auto_approve_taken ELSE COALESCE(
           (SELECT SUM(a.reserved_microdollars) FROM copilot_approval a JOIN copilot_session c ON c.id = a.session_id
            WHERE %(session)s IN (c.root_id, c.id) AND a.state IN ('approved', 'running')), 0) END
WHERE id = %(session)s AND owner_id = %(owner)s AND deleted_at IS NULL
"""


def allow_unasked(
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
            _ALLOW,
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


def _move(row: Approval, to: Approval.State, **fields: object) -> None:
    """One conditional update that names where it may come from."""
    moved = Approval.objects.filter(pk=row.pk, state__in=REACHED_FROM[to]).update(state=to, **fields)
    if not moved:
        raise TurnConflict(f"approval {row.pk} cannot become {to}")


def _reserve(session_id: UUID, one: Wanted) -> str:
    """Set the estimate aside, if the caps leave room; else why not."""
    if not one.billable:
        return ""
    if one.estimate is None:
        return NO_ESTIMATE
    left = allowance(_held(session_id))
    if left is None:
        return NO_CAP
    if one.estimate > left:
        return OVER_CAP
    _account(session_id, one.estimate)
    return ""


def _held(session_id: UUID) -> Session:
    """With the rows of its caps locked until the transaction ends: nobody takes from them meanwhile (A11.11)."""
    rows = Session.objects.select_for_update(no_key=True)
    *above, own = _accounts(session_id)
    root = rows.get(pk=above[0]) if above else None
    session = rows.get(pk=own)
    session.root = root
    return session


def _account(session_id: UUID, amount: int) -> None:
    if amount:
        for account in _accounts(session_id):
            rows = Session.objects.filter(pk=account)
            rows.update(auto_approve_taken=Greatest(F("auto_approve_taken") + amount, 0))


def _accounts(session_id: UUID) -> list[UUID]:
    """Where it is counted: of a sub-session its root, always first, so that two never wait for each other."""
    root_id = Session.objects.only("root_id").get(pk=session_id).root_id
    return [session_id] if root_id is None else [root_id, session_id]
