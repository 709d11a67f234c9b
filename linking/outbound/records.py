"""Record which parts of a turn's answer were sent, so that another process can continue the delivery.

This module is the only writer of OutboundMessage.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from django.core.cache import caches
from django.db import connection

from config.core.db import fetch_one
from config.core.errors import ServiceUnavailable
from copilot.chat import turn_details
from linking.models import OutboundMessage, PlatformConversation
from linking.platforms.base import ConversationScope, OutboundAddress

DELIVERY_WINDOW = timedelta(hours=24)  # after this, an undelivered answer is available on the web only
REPLY_TOKEN_SECONDS = 14 * 60  # Discord accepts them for fifteen minutes


@dataclass(frozen=True, kw_only=True)
class SentPart:
    message_id: str  # empty if sending was started and its result is unknown
    text_hash: str
    card: str


@dataclass(frozen=True, kw_only=True)
class OutboundTurn:
    """A turn whose answer is delivered to a chat."""

    turn_id: UUID
    session_id: UUID
    owner_id: int
    conversation_id: UUID
    platform: str
    address: OutboundAddress
    status: str
    sent: dict[int, SentPart]


# Once a conversation is closed, only turns that were started from it are still answered there.
_REPLIES_IN_CHAT_SQL = "(c.closed_at IS NULL OR t.origin = c.platform)"
_IS_PENDING_SQL = f"""
SELECT c.platform, c.bot_account FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.inbound_context->'reply'->>'conversation_id')::uuid
WHERE t.id = %s AND c.unreachable_at IS NULL AND {_REPLIES_IN_CHAT_SQL}
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
"""  # noqa: S608 - both texts are ours


# Starts from recently active conversations, so that each turn is found once, whatever else its session contains.
_FIND_PENDING_SQL = f"""
SELECT t.id FROM linking_platformconversation c
JOIN copilot_session s ON s.id = c.session_id AND s.deleted_at IS NULL
JOIN copilot_turn t ON t.session_id = c.session_id AND t.created_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND t.inbound_context->'reply'->>'conversation_id' = c.id::text
WHERE (c.platform, c.bot_account) IN (SELECT * FROM unnest(%(platforms)s::text[], %(accounts)s::text[]))
  AND c.unreachable_at IS NULL AND {_REPLIES_IN_CHAT_SQL}
  AND c.last_message_at > statement_timestamp() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
  AND NOT (t.status = 'waiting'
           AND EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.card > ''))
ORDER BY t.created_at LIMIT %(limit)s
"""  # noqa: S608 - both texts are ours


class _ConversationBot(NamedTuple):
    platform: str
    bot_account: str


def is_delivery_pending(turn_id: UUID, accounts: dict[str, str]) -> bool:
    """Check with one query whether the turn may need delivery; most callers find that it does not."""
    bot = fetch_one(_ConversationBot, _IS_PENDING_SQL, [turn_id])
    return bot is not None and accounts.get(bot.platform) == bot.bot_account


def load_outbound_turn(turn_id: UUID, accounts: dict[str, str]) -> OutboundTurn | None:
    """Load a turn to deliver; None if it has no chat, its bot is not in `accounts`, or it was delivered already."""
    turn = turn_details.get_turn_details(turn_id)
    if turn is None or turn.is_session_deleted or turn.reply is None:
        return None
    reply = turn.reply
    conversation = PlatformConversation.objects.reachable().filter(pk=reply.conversation_id).first()
    if conversation is None or accounts.get(conversation.platform) != conversation.bot_account:
        return None
    rows = OutboundMessage.objects.filter(turn=turn_id)
    sent = {
        row.part: SentPart(message_id=row.platform_message_id, text_hash=row.text_hash, card=row.card)
        for row in rows
    }
    if any(row.final for row in rows):
        return None
    return OutboundTurn(
        turn_id=turn_id,
        session_id=turn.session_id,
        owner_id=turn.owner_id,
        conversation_id=conversation.pk,
        platform=conversation.platform,
        address=OutboundAddress(
            scope=_parse_scope(conversation.scope),
            container_id=conversation.container_id,  # the current one: a group may have moved
            thread_id=reply.thread,
            anchor=reply.anchor,
            reply_token=get_reply_token(conversation.platform, turn.run_ids),
        ),
        status=turn.status,
        sent=sent,
    )


def _parse_scope(value: str) -> ConversationScope:
    return "server" if value == "server" else "dm"


# --- Parts ---


_INSERT_PART_SQL = """
INSERT INTO linking_outboundmessage (turn_id, part, conversation_id, platform_message_id, text_hash, card, final)
VALUES (%s, %s, %s, '', '', %s, %s) ON CONFLICT DO NOTHING
"""


def insert_part(outbound_turn: OutboundTurn, part: int, card: str) -> None:
    """Insert a part before it is sent, so that a crash leaves a trace of it."""
    with connection.cursor() as cursor:
        cursor.execute(
            _INSERT_PART_SQL, [outbound_turn.turn_id, part, outbound_turn.conversation_id, card, False]
        )


def record_part(turn_id: UUID, part: int, message_id: str, text_hash: str) -> None:
    OutboundMessage.objects.filter(turn=turn_id, part=part).update(
        platform_message_id=message_id, text_hash=text_hash
    )


def mark_delivered(outbound_turn: OutboundTurn) -> None:
    """Mark the turn as finished, whether its answer was delivered or cannot be."""
    if not OutboundMessage.objects.filter(turn=outbound_turn.turn_id).update(final=True):
        with connection.cursor() as cursor:
            cursor.execute(
                _INSERT_PART_SQL, [outbound_turn.turn_id, 1, outbound_turn.conversation_id, "", True]
            )


def hash_content(text: str, *, with_buttons: bool) -> str:
    """Hash what people see. Button codes are left out because they are random."""
    return hashlib.sha256(f"{text}\x1f{with_buttons}".encode()).hexdigest()


def find_pending_turns(accounts: dict[str, str], limit: int = 500) -> list[UUID]:
    """Return turns whose answer is not fully delivered, oldest first, except those that wait for a decision."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FIND_PENDING_SQL,
            {
                "platforms": list(accounts),
                "accounts": list(accounts.values()),
                "seconds": DELIVERY_WINDOW.total_seconds(),
                "limit": limit,
            },
        )
        return [turn_id for (turn_id,) in cursor.fetchall()]


# --- Reply tokens ---


def save_reply_token(platform: str, run_id: str, token: str) -> None:
    # Without the token the bot answers with an ordinary message, so an outage of the cache is harmless.
    try:
        caches["shared"].set(f"reply-token:{platform}:{run_id}", token, REPLY_TOKEN_SECONDS)
    except ServiceUnavailable:
        return


def get_reply_token(platform: str, run_ids: tuple[str, ...]) -> str:
    try:
        found = caches["shared"].get_many([f"reply-token:{platform}:{run_id}" for run_id in run_ids])
    except ServiceUnavailable:
        return ""
    return next((str(token) for token in found.values()), "")
