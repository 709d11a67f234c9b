"""Record webhook deliveries when a bot's turn ends, needs an approval or asks a question, once per event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from config.core.db import fetch_one
from config.core.json_values import JSON
from copilot.chat import serializers as chat_serializers
from copilot.chat import turn_details
from copilot.chat.turn_details import TurnDetails
from linking import signals
from linking.event_projection import ProjectedEvent, project_event
from linking.models import Delivery, DeliveryEndpoint

MAX_DELIVERY_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 48 * 1024  # of the answer as JSON; the rest is for the fields around it


@dataclass(frozen=True, kw_only=True)
class _TurnEvent:
    key: str  # identifies the event, so that it is recorded once
    event: str
    fields: dict[str, JSON]


def record_deliveries(turn_id: UUID, **_signal: object) -> int:
    """Receive `turn_awaits_person` and `turn_ended`: record what the bot must be told; return how many are new."""
    found = _find_endpoint(turn_id)
    turn = turn_details.get_turn_details(turn_id) if found is not None else None
    if found is None or turn is None:
        return 0
    created = sum(
        _create_delivery(found.endpoint_id, found.conversation_id, turn, event)
        for event in _iter_events(turn)
    )
    if created:
        transaction.on_commit(lambda: signals.deliveries_recorded.send_robust(sender=Delivery))
    return created


_FIND_ENDPOINT_SQL = """
SELECT e.id AS endpoint_id, c.id AS conversation_id FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.inbound_context->'reply'->>'conversation_id')::uuid
JOIN linking_deliveryendpoint e ON e.platform = c.platform AND e.bot_account = c.bot_account
WHERE t.id = %s AND e.disabled_at IS NULL AND t.purpose = 'reply'
  AND (c.closed_at IS NULL OR t.origin = c.platform)  -- in a closed conversation only its own turns are answered
"""


class _FoundEndpoint(NamedTuple):
    endpoint_id: UUID
    conversation_id: UUID


def _find_endpoint(turn_id: UUID) -> _FoundEndpoint | None:
    """Find the endpoint and the conversation of a turn, with the one query that every turn costs."""
    return fetch_one(_FoundEndpoint, _FIND_ENDPOINT_SQL, [turn_id])


def _iter_events(turn: TurnDetails) -> Iterator[_TurnEvent]:
    turn_id = str(turn.turn_id)
    if turn.has_ended:
        yield _TurnEvent(key=f"ended:{turn_id}", event=f"turn.{turn.status}", fields=_ending_fields(turn))
        return
    if turn.status == "waiting":
        approvals = [
            approval
            for approval in chat_serializers.list_open_approvals(turn.session_id)
            if approval.turn_id == turn_id
        ]
        if approvals:
            first_id = min(approval.id for approval in approvals)
            fields: dict[str, JSON] = {"approvals": msgspec.to_builtins(approvals)}
            yield _TurnEvent(key=f"approval:{first_id}", event="approval.requested", fields=fields)
    for question in chat_serializers.list_open_questions(turn.session_id):
        if question.turn_id == turn_id:
            fields = {"question": msgspec.to_builtins(question)}
            yield _TurnEvent(key=f"question:{question.id}", event="question.asked", fields=fields)


def _ending_fields(turn: TurnDetails) -> dict[str, JSON]:
    run_ids: list[JSON] = list(turn.run_ids)
    match turn.status:
        case "failed":
            return {"run_ids": run_ids, "code": turn.failure_code}
        case "cancelled":
            return {"run_ids": run_ids, "reason": turn.cancel_reason}
        case _:
            return {"run_ids": run_ids, "limit_code": turn.limit_code or None}


def _create_delivery(endpoint_id: UUID, conversation_id: UUID, turn: TurnDetails, event: _TurnEvent) -> bool:
    with transaction.atomic():
        endpoint = DeliveryEndpoint.objects.select_for_update().filter(pk=endpoint_id).first()
        if endpoint is None or endpoint.deliveries.filter(event_key=event.key).exists():
            return False
        last = endpoint.deliveries.aggregate(last=Max("number"))["last"] or 0
        row = Delivery(
            endpoint=endpoint,
            conversation_id=conversation_id,
            number=last + 1,
            turn_id=turn.turn_id,
            event=event.event,
            event_key=event.key,
        )
        row.body = _build_body(row, turn, event)
        row.save(force_insert=True)
    return True


def _build_body(row: Delivery, turn: TurnDetails, event: _TurnEvent) -> str:
    """Build the event as bots read it, with its place in the chat and, after a success, the answer."""
    fields = {
        "kind": event.event,
        "session_id": str(turn.session_id),
        "turn_id": str(turn.turn_id),
        **event.fields,
    }
    body_fields = project_event(fields)
    assert body_fields is not None
    body_fields["delivery_id"] = str(row.pk)
    body_fields["conversation_id"] = str(row.conversation_id)
    if (reply := turn.reply) is not None:
        body_fields |= {"container_id": reply.container, "thread_id": reply.thread, "reply_to": reply.anchor}
    if event.event == "turn.succeeded":
        text, cut = _truncate_text(turn_details.get_answer_text(turn.turn_id))
        body_fields |= {"text": text, "truncated": cut}
    return _encode_body(body_fields).decode()


def _encode_body(body_fields: ProjectedEvent) -> bytes:
    """Encode the body, leaving out the arguments of approvals if it would be too large."""
    body = msgspec.json.encode(body_fields)
    approvals = body_fields.get("approvals")
    if len(body) <= MAX_DELIVERY_BYTES or not isinstance(approvals, list):
        return body
    shorter: list[JSON] = [approval | {"shown": {}} for approval in approvals if isinstance(approval, dict)]
    return msgspec.json.encode(body_fields | {"approvals": shorter, "truncated": True})


def _truncate_text(text: str) -> tuple[str, bool]:
    """Cut the text to the limit in JSON, where a character may take six bytes or more."""
    cut = text[:MAX_ANSWER_BYTES]
    while len(msgspec.json.encode(cut)) > MAX_ANSWER_BYTES:
        cut = cut[: int(len(cut) * 0.9)]
    return cut, len(cut) < len(text)


_FIND_MISSED_SQL = """
SELECT t.id FROM linking_deliveryendpoint e
JOIN linking_platformconversation c ON c.platform = e.platform AND c.bot_account = e.bot_account
JOIN copilot_turn t ON t.session_id = c.session_id AND t.inbound_context->'reply'->>'conversation_id' = c.id::text
WHERE e.disabled_at IS NULL AND t.purpose = 'reply'
  AND t.ended_at > now() - interval '1 hour' AND t.ended_at > e.created_at  -- apart: the first finds the turns by index
  AND NOT EXISTS (SELECT 1 FROM linking_delivery d WHERE d.endpoint_id = e.id AND d.event_key = 'ended:' || t.id)
LIMIT 200
"""


def record_missed_deliveries() -> int:
    """Record endings of the last hour that were missed because a process died."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND_MISSED_SQL)
        turn_ids = [row[0] for row in cursor.fetchall()]
    return sum(record_deliveries(turn_id) for turn_id in turn_ids)
