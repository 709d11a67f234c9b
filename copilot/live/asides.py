"""The one question aside that a session may have under way: who asked what, for as long as somebody answers (A30.3)."""

from __future__ import annotations

from dataclasses import dataclass

from copilot.live import keys
from copilot.live.client import blocking, script, script_on_loop

WAITING_SECONDS = 30  # until a worker takes it up
HELD_SECONDS = 15  # renewed while it is answered: a lost worker frees the session after this


@dataclass(frozen=True, kw_only=True)
class Asked:
    user_id: int
    question: str


def claim(session_id: str, side_id: str, *, user_id: int, question: str) -> bool:
    """False while another one is under way."""
    args: list[str | int] = [side_id, user_id, question, WAITING_SECONDS]
    return bool(script("claim_aside")(keys=[keys.aside(session_id)], args=args))


def asked(session_id: str, side_id: str) -> Asked | None:
    """None when it was stopped, or waited too long."""
    found: dict[bytes, bytes] = blocking().hgetall(keys.aside(session_id))  # type: ignore[assignment]
    if found.get(b"id", b"").decode() != side_id:
        return None
    return Asked(user_id=int(found[b"user"]), question=found[b"question"].decode())


def under_way(session_id: str) -> str | None:
    side_id: bytes | None = blocking().hget(keys.aside(session_id), "id")  # type: ignore[assignment]
    return side_id.decode() if side_id is not None else None


async def keep(session_id: str, side_id: str) -> bool:
    """It is still answered; False when it was stopped."""
    return bool(
        await script_on_loop("keep_aside")(keys=[keys.aside(session_id)], args=[side_id, HELD_SECONDS])
    )


def let_go(session_id: str, side_id: str) -> bool:
    """Answered, or to be stopped; False when it is not the one under way."""
    return bool(script("keep_aside")(keys=[keys.aside(session_id)], args=[side_id, 0]))
