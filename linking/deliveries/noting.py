"""What a bot must be told is written down when its turn ends, pauses or asks: once for each thing (L17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from copilot import queries, turns
from copilot.events import JSON
from copilot.turns import TurnStanding
from linking import ports
from linking.models import Delivery, DeliveryEndpoint
from linking.reduction import Told, reduced

BODY_BYTES = 64 * 1024
TEXT_BYTES = 48 * 1024  # of an answer, as JSON; what stands around it has the rest


@dataclass(frozen=True, kw_only=True)
class _Happened:
    key: str  # what it tells of; told once
    event: str
    fields: dict[str, JSON]


def note(turn_id: UUID) -> int:
    """TURN_HOOKS: a turn started, paused, asked or ended. How many deliveries that made; none is made twice."""
    found = _endpoint_of(turn_id)
    standing = turns.standing(turn_id) if found is not None else None
    if found is None or standing is None:
        return 0
    endpoint, conversation = found
    made = sum(_write(endpoint, conversation, standing, one) for one in _happened(standing))
    if made:
        ports.deliver()
    return made


_FOUND = """
SELECT e.id, c.id FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.arrival->'reply'->>'conversation_id')::uuid
JOIN linking_deliveryendpoint e ON e.platform = c.platform AND e.bot_account = c.bot_account
WHERE t.id = %s AND e.disabled_at IS NULL AND t.purpose = 'reply'
  AND (c.closed_at IS NULL OR t.origin = c.platform)  -- what follows later stays on the web when the place is closed
"""


def _endpoint_of(turn_id: UUID) -> tuple[UUID, UUID] | None:
    """One question for all turns, and no more for those that nobody waits for."""
    with connection.cursor() as cursor:
        cursor.execute(_FOUND, [turn_id])
        row = cursor.fetchone()
    return (row[0], row[1]) if row else None


def _happened(standing: TurnStanding) -> Iterator[_Happened]:
    turn_id = str(standing.turn_id)
    if standing.is_over:
        yield _Happened(key=f"ended:{turn_id}", event=f"turn.{standing.status}", fields=_ending(standing))
        return
    if standing.status == "waiting":
        asked = [one for one in queries.open_approvals(standing.session_id) if one.turn_id == turn_id]
        if asked:
            first = min(one.id for one in asked)
            fields: dict[str, JSON] = {"approvals": msgspec.to_builtins(asked)}
            yield _Happened(key=f"approval:{first}", event="approval.requested", fields=fields)
    for question in queries.open_questions(standing.session_id):
        if question.turn_id == turn_id:
            told: dict[str, JSON] = {"question": msgspec.to_builtins(question)}
            yield _Happened(key=f"question:{question.id}", event="question.asked", fields=told)


def _ending(standing: TurnStanding) -> dict[str, JSON]:
    run_ids: list[JSON] = list(standing.run_ids)
    match standing.status:
        case "failed":
            return {"run_ids": run_ids, "code": standing.failure_code}
        case "cancelled":
            return {"run_ids": run_ids, "reason": standing.cancel_reason}
        case _:
            return {"run_ids": run_ids, "limit_code": standing.limit_code or None}


def _write(endpoint_id: UUID, conversation_id: UUID, standing: TurnStanding, one: _Happened) -> bool:
    with transaction.atomic():
        endpoint = DeliveryEndpoint.objects.select_for_update().filter(pk=endpoint_id).first()
        if endpoint is None or endpoint.deliveries.filter(event_key=one.key).exists():
            return False
        last = endpoint.deliveries.aggregate(last=Max("number"))["last"] or 0
        row = Delivery(
            endpoint=endpoint,
            conversation_id=conversation_id,
            number=last + 1,
            turn_id=standing.turn_id,
            event=one.event,
            event_key=one.key,
        )
        row.body = _body(row, standing, one)
        row.save(force_insert=True)
    return True


def _body(row: Delivery, standing: TurnStanding, one: _Happened) -> str:
    """The event in the form bots read it, where it was asked for, and with an ending the answer."""
    event = {
        "kind": one.event,
        "session_id": str(standing.session_id),
        "turn_id": str(standing.turn_id),
        **one.fields,
    }
    told = reduced(event)
    assert told is not None
    told["delivery_id"] = str(row.pk)
    told["conversation_id"] = str(row.conversation_id)
    if (reply := standing.reply) is not None:
        told |= {"container_id": reply.container, "thread_id": reply.thread, "reply_to": reply.anchor}
    if one.event == "turn.succeeded":
        text, cut = _shortened(turns.answer_text(standing.turn_id))
        told |= {"text": text, "truncated": cut}
    return _encoded(told).decode()


def _encoded(told: Told) -> bytes:
    """Within the limit: of very many calls only what each is about is said."""
    body = msgspec.json.encode(told)
    approvals = told.get("approvals")
    if len(body) <= BODY_BYTES or not isinstance(approvals, list):
        return body
    shorter: list[JSON] = [one | {"shown": {}} for one in approvals if isinstance(one, dict)]
    return msgspec.json.encode(told | {"approvals": shorter, "truncated": True})


def _shortened(text: str) -> tuple[str, bool]:
    """Within the limit as JSON, where a character may take six bytes or more."""
    cut = text[:TEXT_BYTES]
    while len(msgspec.json.encode(cut)) > TEXT_BYTES:
        cut = cut[: int(len(cut) * 0.9)]
    return cut, len(cut) < len(text)


_MISSED = """
SELECT t.id FROM linking_deliveryendpoint e
JOIN linking_platformconversation c ON c.platform = e.platform AND c.bot_account = e.bot_account
JOIN copilot_turn t ON t.session_id = c.session_id AND t.arrival->'reply'->>'conversation_id' = c.id::text
WHERE e.disabled_at IS NULL AND t.ended_at > GREATEST(e.created_at, now() - interval '1 hour') AND t.purpose = 'reply'
  AND NOT EXISTS (SELECT 1 FROM linking_delivery d WHERE d.endpoint_id = e.id AND d.event_key = 'ended:' || t.id)
LIMIT 200
"""


def note_missed() -> int:
    """Endings of the last hour that a process did not write down because it died."""
    with connection.cursor() as cursor:
        cursor.execute(_MISSED)
        missed = [row[0] for row in cursor.fetchall()]
    return sum(note(turn_id) for turn_id in missed)
