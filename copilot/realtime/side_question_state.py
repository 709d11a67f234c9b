"""Hold the one side question that a session may have in progress, in Redis, until it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from config.core.redis import get_async_script, get_redis, get_script
from copilot.realtime import redis_keys

UNCLAIMED_LIFETIME_SECONDS = 30  # until a worker starts to answer
CLAIMED_LIFETIME_SECONDS = 15  # renewed while it is answered: after a lost worker the session is free again


@dataclass(frozen=True, kw_only=True)
class PendingSideQuestion:
    user_id: int
    question: str


def claim_side_question(session_id: str, side_id: str, *, user_id: int, question: str) -> bool:
    """Store a side question; False while another one is in progress."""
    args: list[str | int] = [side_id, user_id, question, UNCLAIMED_LIFETIME_SECONDS]
    return bool(get_script("claim_side_question")(keys=[redis_keys.side_question_key(session_id)], args=args))


def get_pending_side_question(session_id: str, side_id: str) -> PendingSideQuestion | None:
    """Return the side question; None when it was stopped or has expired."""
    fields: dict[bytes, bytes] = get_redis().hgetall(redis_keys.side_question_key(session_id))  # type: ignore[assignment]
    if fields.get(b"id", b"").decode() != side_id:
        return None
    return PendingSideQuestion(user_id=int(fields[b"user"]), question=fields[b"question"].decode())


def get_current_side_id(session_id: str) -> str | None:
    side_id: bytes | None = get_redis().hget(redis_keys.side_question_key(session_id), "id")  # type: ignore[assignment]
    return side_id.decode() if side_id is not None else None


async def renew_side_question(session_id: str, side_id: str) -> bool:
    """Extend the lifetime while the answer is written; False when the question was stopped."""
    return bool(
        await get_async_script("renew_side_question")(
            keys=[redis_keys.side_question_key(session_id)], args=[side_id, CLAIMED_LIFETIME_SECONDS]
        )
    )


def release_side_question(session_id: str, side_id: str) -> bool:
    """Remove an answered or stopped side question; False when another one is in progress."""
    return bool(
        get_script("renew_side_question")(keys=[redis_keys.side_question_key(session_id)], args=[side_id, 0])
    )
