"""Model calls whose worker was lost with their figures: told from those never sent, and recorded at an estimate (A19.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Length, Now

from copilot.events import StepStarted, Tokens, decode
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Message, ModelCall
from copilot.usage import REPLY, Spent, finish, withdraw

EXCERPTS = ("title", "goal")  # calls that read a little of the conversation …
EXCERPT_TOKENS = 500  # … about this much
FORGOTTEN_AFTER = timedelta(minutes=10)  # longer than any call lives beyond its turn
RECENT_EVENTS = 1_000  # a call that nothing was written of has told little more than its step
CHARACTERS_PER_TOKEN = 4  # an estimate; exact counts come from the provider


def settle(turn_id: UUID) -> None:
    """Those of one turn, recorded as aborted (A19.5, T9.6).

    Should that worker live after all, what it records later meets the same id and changes nothing.
    """
    for call in _open_calls().filter(turn=turn_id):
        if _was_sent(call):
            _settle(call)
        else:
            withdraw(turn_id, call.number)


def settle_forgotten(*, turns_of: timedelta) -> int:
    """The same for calls that nobody comes back to: of turns that ended a while ago, and questions aside (B4.1).

    `turns_of`: how far back is looked. Often at turns that ended just now, and now and then at a whole day of them.
    """
    over = Now() - FORGOTTEN_AFTER
    of_turns = Q(turn__ended_at__lt=over, turn__ended_at__gt=Now() - FORGOTTEN_AFTER - turns_of)
    calls = _open_calls().filter(created_at__lt=over)
    forgotten = [*calls.filter(of_turns)[:200], *calls.filter(session__isnull=False)[:200]]
    for call in forgotten:
        _settle(call)
    return len(forgotten)


def _open_calls() -> QuerySet[ModelCall]:
    return ModelCall.objects.filter(ended_at=None).select_related("turn__session", "session")


def _settle(call: ModelCall) -> None:
    session = call.session if call.turn is None else call.turn.session
    assert session is not None  # the database keeps it so
    spent = Spent(
        call_id=call.pk,
        turn_id=call.turn_id,
        session_id=session.pk,
        user_id=session.owner_id,
        ended_at=datetime.now(UTC),
        provider=call.provider,
        model=call.model,
        tokens=_estimate(session.pk) if call.purpose not in EXCERPTS else Tokens(input=EXCERPT_TOKENS),
        cost=None,
        estimated=True,
        aborted=True,
        refused_before_work=False,
        latency_ms=0,
        first_token_ms=None,
        response_id="",
        purpose=call.purpose,
    )
    finish(spent)


def _was_sent(call: ModelCall) -> bool:
    """Whether something of the call was written or told; a log that cannot say so counts as yes: no cost is lost."""
    rows = Message.objects.filter(turn=call.turn_id, created_at__gt=call.created_at)
    if call.turn is None or call.purpose != REPLY:
        return True
    if rows.filter(kind__in=["assistant", "reasoning", "tool_call"]).exists() or _goes_on(call):
        return True
    try:
        recent = stream.recent(str(call.turn.session_id), count=RECENT_EVENTS)
    except RedisDown:
        return True
    if not recent or recent[0].place[0] / 1000 > call.created_at.timestamp():
        return True
    name = f'"turn_id":"{call.turn_id}"'
    steps = (
        decode(entry.payload) for entry in recent if entry.kind == "step.started" and name in entry.payload
    )
    return any(isinstance(step, StepStarted) and step.call == call.number for step in steps)


def _goes_on(call: ModelCall) -> bool:
    """It is for the rest of a text that the output limit cut, so it belongs to the step before it (A2.4)."""
    open_text = Message.objects.filter(turn=call.turn_id, kind="assistant", streaming=True)
    before = ModelCall.objects.filter(turn=call.turn_id, number=call.number - 1, ending="cut")
    return open_text.exists() and before.exists()


def _estimate(session_id: UUID) -> Tokens:
    """What stands in the conversation went in; what was still streaming came out."""
    rows = Message.objects.filter(session=session_id, hidden="", sequence__isnull=False)
    sums = rows.aggregate(
        given=Sum(Length("content"), filter=Q(streaming=False), default=0),
        made=Sum(Length("content"), filter=Q(streaming=True), default=0),
    )
    return Tokens(input=sums["given"] // CHARACTERS_PER_TOKEN, output=sums["made"] // CHARACTERS_PER_TOKEN)
