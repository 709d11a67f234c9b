"""The one question aside that a session may have under way: who asked what, for as long as somebody answers (A30.3)."""

from __future__ import annotations

from dataclasses import dataclass

from config.core.redis import get_async_script, get_redis, get_script
from copilot.realtime import redis_keys

UNCLAIMED_LIFETIME_SECONDS = 30  # until a worker takes it up
CLAIMED_LIFETIME_SECONDS = 15  # renewed while it is answered: a lost worker frees the session after this


@dataclass(frozen=True, kw_only=True)
class PendingSideQuestion:
    user_id: int
    question: str


def claim_side_question(session_id: str, side_id: str, *, user_id: int, question: str) -> bool:
    """False while another one is under way."""
    args: list[str | int] = [side_id, user_id, question, UNCLAIMED_LIFETIME_SECONDS]
    return bool(get_script("claim_aside")(keys=[redis_keys.side_question_key(session_id)], args=args))


def get_pending_side_question(session_id: str, side_id: str) -> PendingSideQuestion | None:
    """None when it was stopped, or waited too long."""
    found: dict[bytes, bytes] = get_redis().hgetall(redis_keys.side_question_key(session_id))  # type: ignore[assignment]
    if found.get(b"id", b"").decode() != side_id:
        return None
    return PendingSideQuestion(user_id=int(found[b"user"]), question=found[b"question"].decode())


def get_current_side_id(session_id: str) -> str | None:
    side_id: bytes | None = get_redis().hget(redis_keys.side_question_key(session_id), "id")  # type: ignore[assignment]
    return side_id.decode() if side_id is not None else None


async def renew_side_question(session_id: str, side_id: str) -> bool:
    """It is still answered; False when it was stopped."""
    return bool(
        await get_async_script("keep_aside")(
            keys=[redis_keys.side_question_key(session_id)], args=[side_id, CLAIMED_LIFETIME_SECONDS]
        )
    )


def release_side_question(session_id: str, side_id: str) -> bool:
    """Answered, or to be stopped; False when it is not the one under way."""
    return bool(get_script("keep_aside")(keys=[redis_keys.side_question_key(session_id)], args=[side_id, 0]))
