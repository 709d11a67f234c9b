"""After the storm: what T9.6 promises, looked for in the rows, in Redis, and in what people saw."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connection

from billing.models import UsageRecord
from copilot.chat import selectors as chat_selectors
from copilot.models import Message, ModelCall, Turn
from copilot.realtime import lease
from tests.faults.load import Crowd, Person, Watcher

TOKEN = re.compile(r"t(\d+) ?")


@dataclass(frozen=True)
class Finding:
    """One broken promise."""

    promise: str
    what: str


def unfinished() -> int:
    """Turns that run, and messages that wait for one."""
    connection.close()  # the one before may have died with its server
    pending = Message.objects.filter(kind="user", sequence=None, dropped_at=None).count()
    return Turn.objects.filter(status__in=Turn.UNFINISHED).count() + pending


def leases() -> list[lease.ScannedLease]:
    return list(lease.scan_leases())


def broken_promises(crowd: Crowd) -> list[Finding]:
    looks = {
        "every accepted message is in the transcript exactly once": _messages(crowd),
        "messages are in the order in which they were accepted": _order(crowd.people),
        "every turn has one ending, in its row": _endings_in_rows(),
        "nobody saw a turn end twice, or missed its end": _endings_seen(crowd.watchers),
        "no lease outlives its turn": _leases(),
        "no cost is lost or doubled": _costs(),
        "text has no gap and no repetition": _texts(),
        "every call has one result": _results(),
        "a page that lived through it equals its reload": _pages(crowd.watchers),
    }
    return [Finding(promise, what) for promise, found in looks.items() for what in found]


PROMISES = (
    "every accepted message is in the transcript exactly once",
    "messages are in the order in which they were accepted",
    "every turn has one ending, in its row",
    "nobody saw a turn end twice, or missed its end",
    "no lease outlives its turn",
    "no cost is lost or doubled",
    "text has no gap and no repetition",
    "every call has one result",
    "a page that lived through it equals its reload",
)


def _messages(crowd: Crowd) -> Iterator[str]:
    for person in crowd.people:
        rows = Message.objects.filter(session_id=person.session_id, kind="user")
        placed = {str(row.pk): row for row in rows if row.sequence is not None}
        for message_id, text in person.accepted.items():
            if message_id not in placed:
                yield f"{person.name}: accepted and missing: {text!r}"
            elif placed[message_id].content != text:
                yield f"{person.name}: {text!r} became {placed[message_id].content!r}"
        for text, times in Counter(row.content for row in placed.values()).items():
            if times > 1:
                yield f"{person.name}: {times} times in the transcript: {text!r}"
            if text not in {*person.accepted.values(), *person.doubtful, *person.refused}:
                yield f"{person.name}: nobody said {text!r}"
            if text in person.refused - person.doubtful - set(person.accepted.values()):
                yield f"{person.name}: refused, and there all the same: {text!r}"


def _order(people: list[Person]) -> Iterator[str]:
    """Strict where nothing was ever kept as a chip: no stop, and no turn that failed or was cancelled.

    What was answered by "it may have been accepted" is none of them: if it was, it comes when it is found.
    """
    for person in people:
        turns = Turn.objects.filter(session_id=person.session_id)
        if turns.exclude(status="succeeded").exists():
            continue
        rows = Message.objects.filter(pk__in=person.accepted, sequence__isnull=False)
        numbers = list(rows.order_by("sequence").values_list("accept_number", flat=True))
        if numbers != sorted(numbers, key=lambda number: number or 0):
            yield f"{person.name}: accept numbers in the order of the transcript: {numbers}"


def _endings_in_rows() -> Iterator[str]:
    for turn in Turn.objects.filter(status__in=Turn.UNFINISHED):
        yield f"turn {turn.pk} is {turn.status}"
    for turn in Turn.objects.filter(status="failed").exclude(failure_code="worker_lost"):
        yield f"turn {turn.pk} failed as {turn.failure_code}, which no fault excuses"


def _endings_seen(watchers: list[Watcher]) -> Iterator[str]:
    for watcher in watchers:
        for turn_id, cursors in watcher.endings.items():
            if len(cursors) > 1:
                yield f"{watcher.person.name}: turn {turn_id} ended {len(cursors)} times, at {cursors}"
        if watcher.page.turn is not None and not Turn.objects.filter(
            pk=watcher.page.turn.id, status__in=Turn.UNFINISHED
        ):
            yield f"{watcher.person.name}: still shows turn {watcher.page.turn.id}, which has ended"


def _leases() -> Iterator[str]:
    for held in leases():
        yield f"session {held.session_id} is held for turn {held.turn_id}"


def _costs() -> Iterator[str]:
    calls = {row.pk: row for row in ModelCall.objects.select_related("turn")}
    records = Counter(UsageRecord.objects.values_list("call_id", flat=True))
    for call_id, times in records.items():
        if times > 1:
            yield f"call {call_id} was recorded {times} times"
        if call_id not in calls:
            yield f"a cost is recorded for call {call_id}, which nobody made"
    for call_id, call in calls.items():
        status = call.turn.status if call.turn else "deleted"
        stopped_before_it_was_sent = call.ended_at is None and status == "cancelled"
        refused_before_work = call.ended_at is not None and not call.cost_source
        if not records[call_id] and not stopped_before_it_was_sent and not refused_before_work:
            yield f"call {call.number} of the {status} turn {call.turn_id} has no cost"


def _texts() -> Iterator[str]:
    rows = Message.objects.filter(kind="assistant", hidden="").select_related("turn")
    for row in rows:
        numbers = [int(number) for number in TOKEN.findall(row.content)]
        if numbers != list(range(len(numbers))):
            yield f"{row.turn and row.turn.status} turn {row.turn_id}: {row.content[:400]!r}"
        if row.streaming:
            yield f"row {row.pk} of turn {row.turn_id} still streams"


def _results() -> Iterator[str]:
    calls = set(Message.objects.filter(kind="tool_call", hidden="").values_list("session_id", "call_id"))
    results = Counter(Message.objects.filter(kind="tool_result").values_list("session_id", "call_id"))
    for key in calls:
        if results[key] != 1:
            yield f"call {key} has {results[key]} results"


def _pages(watchers: list[Watcher]) -> Iterator[str]:
    from tests.support import event_reducer

    for watcher in watchers:
        snapshot, _ = chat_selectors.build_snapshot(watcher.person.session_id)  # type: ignore[arg-type]
        reloaded = event_reducer.reduce_snapshot(snapshot)
        seen = watcher.page.rows
        for row_id, row in reloaded.rows.items():
            if seen.get(row_id) != row:
                yield f"{watcher.person.name}: reloaded {row}\n      but seen {seen.get(row_id)}"
        if watcher.page.queue != reloaded.queue:
            yield f"{watcher.person.name}: the queue shows {watcher.page.queue}, and is {reloaded.queue}"
