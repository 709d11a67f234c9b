"""What a bot must be told is written down when its turn ends, pauses or asks: once for each thing (L17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from config.core.json_values import JSON
from copilot.chat import serializers as chat_serializers
from copilot.chat import turn_details
from copilot.chat.turn_details import TurnDetails
from linking import task_registry
from linking.event_projection import ProjectedEvent, project_event
from linking.models import Delivery, DeliveryEndpoint

MAX_DELIVERY_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 48 * 1024  # of an answer, as JSON; what stands around it has the rest


@dataclass(frozen=True, kw_only=True)
class _TurnEvent:
    key: str  # what it tells of; told once
    event: str
    fields: dict[str, JSON]


def record_deliveries(turn_id: UUID) -> int:
    """TURN_HOOKS: a turn started, paused, asked or ended. How many deliveries that made; none is made twice."""
    found = _find_endpoint(turn_id)
    standing = turn_details.get_turn_details(turn_id) if found is not None else None
    if found is None or standing is None:
        return 0
    endpoint, conversation = found
    made = sum(_create_delivery(endpoint, conversation, standing, one) for one in _iter_events(standing))
    if made:
        task_registry.enqueue_deliveries()
    return made


_FIND_ENDPOINT_SQL = """
SELECT e.id, c.id FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.arrival->'reply'->>'conversation_id')::uuid
JOIN linking_deliveryendpoint e ON e.platform = c.platform AND e.bot_account = c.bot_account
WHERE t.id = %s AND e.disabled_at IS NULL AND t.purpose = 'reply'
  AND (c.closed_at IS NULL OR t.origin = c.platform)  -- what follows later stays on the web when the place is closed
"""


def _find_endpoint(turn_id: UUID) -> tuple[UUID, UUID] | None:
    """One question for all turns, and no more for those that nobody waits for."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND_ENDPOINT_SQL, [turn_id])
        row = cursor.fetchone()
    return (row[0], row[1]) if row else None


def _iter_events(standing: TurnDetails) -> Iterator[_TurnEvent]:
    turn_id = str(standing.turn_id)
    if standing.has_ended:
        yield _TurnEvent(
            key=f"ended:{turn_id}", event=f"turn.{standing.status}", fields=_ending_fields(standing)
        )
        return
    if standing.status == "waiting":
        asked = [
            one for one in chat_serializers.list_open_approvals(standing.session_id) if one.turn_id == turn_id
        ]
        if asked:
            first = min(one.id for one in asked)
            fields: dict[str, JSON] = {"approvals": msgspec.to_builtins(asked)}
            yield _TurnEvent(key=f"approval:{first}", event="approval.requested", fields=fields)
    for question in chat_serializers.list_open_questions(standing.session_id):
        if question.turn_id == turn_id:
            told: dict[str, JSON] = {"question": msgspec.to_builtins(question)}
            yield _TurnEvent(key=f"question:{question.id}", event="question.asked", fields=told)


def _ending_fields(standing: TurnDetails) -> dict[str, JSON]:
    run_ids: list[JSON] = list(standing.run_ids)
    match standing.status:
        case "failed":
            return {"run_ids": run_ids, "code": standing.failure_code}
        case "cancelled":
            return {"run_ids": run_ids, "reason": standing.cancel_reason}
        case _:
            return {"run_ids": run_ids, "limit_code": standing.limit_code or None}


def _create_delivery(
    endpoint_id: UUID, conversation_id: UUID, standing: TurnDetails, one: _TurnEvent
) -> bool:
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
        row.body = _build_body(row, standing, one)
        row.save(force_insert=True)
    return True


def _build_body(row: Delivery, standing: TurnDetails, one: _TurnEvent) -> str:
    """The event in the form bots read it, where it was asked for, and with an ending the answer."""
    event = {
        "kind": one.event,
        "session_id": str(standing.session_id),
        "turn_id": str(standing.turn_id),
        **one.fields,
    }
    told = project_event(event)
    assert told is not None
    told["delivery_id"] = str(row.pk)
    told["conversation_id"] = str(row.conversation_id)
    if (reply := standing.reply) is not None:
        told |= {"container_id": reply.container, "thread_id": reply.thread, "reply_to": reply.anchor}
    if one.event == "turn.succeeded":
        text, cut = _truncate_text(turn_details.get_answer_text(standing.turn_id))
        told |= {"text": text, "truncated": cut}
    return _encode_body(told).decode()


def _encode_body(told: ProjectedEvent) -> bytes:
    """Within the limit: of very many calls only what each is about is said."""
    body = msgspec.json.encode(told)
    approvals = told.get("approvals")
    if len(body) <= MAX_DELIVERY_BYTES or not isinstance(approvals, list):
        return body
    shorter: list[JSON] = [one | {"shown": {}} for one in approvals if isinstance(one, dict)]
    return msgspec.json.encode(told | {"approvals": shorter, "truncated": True})


def _truncate_text(text: str) -> tuple[str, bool]:
    """Within the limit as JSON, where a character may take six bytes or more."""
    cut = text[:MAX_ANSWER_BYTES]
    while len(msgspec.json.encode(cut)) > MAX_ANSWER_BYTES:
        cut = cut[: int(len(cut) * 0.9)]
    return cut, len(cut) < len(text)


_FIND_MISSED_SQL = """
SELECT t.id FROM linking_deliveryendpoint e
JOIN linking_platformconversation c ON c.platform = e.platform AND c.bot_account = e.bot_account
JOIN copilot_turn t ON t.session_id = c.session_id AND t.arrival->'reply'->>'conversation_id' = c.id::text
WHERE e.disabled_at IS NULL AND t.ended_at > GREATEST(e.created_at, now() - interval '1 hour') AND t.purpose = 'reply'
  AND NOT EXISTS (SELECT 1 FROM linking_delivery d WHERE d.endpoint_id = e.id AND d.event_key = 'ended:' || t.id)
LIMIT 200
"""


def record_missed_deliveries() -> int:
    """Endings of the last hour that a process did not write down because it died."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND_MISSED_SQL)
        missed = [row[0] for row in cursor.fetchall()]
    return sum(record_deliveries(turn_id) for turn_id in missed)
