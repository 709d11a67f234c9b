"""What billing refuses, and who must act.

BillingError
└── Refused                  the user must act or wait; carries the wire's code and status
    └── LimitReached         429  the day's or week's use is at its limit
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Literal

WindowName = Literal["daily", "weekly"]
LimitReason = Literal["used", "held"]


class BillingError(Exception):
    """Root of the tree; never raised itself."""

    retryable: ClassVar[bool] = False


class Refused(BillingError):
    """A request that was understood and cannot be served to this user now."""

    status: ClassVar[int] = 400

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class LimitReached(Refused):
    """No new work before `resets_at` (B6.6). Its text names window and time, never an amount."""

    status = 429

    def __init__(self, *, window: WindowName, resets_at: datetime, reason: LimitReason = "used") -> None:
        self.window: WindowName = window
        self.resets_at = resets_at
        self.reason: LimitReason = reason
        super().__init__(_sentence(self), code="limit_reached" if reason == "used" else "limit_held")

    def retry_after_seconds(self, now: datetime) -> int:
        """Whole seconds, rounded up, at least one (B16.4)."""
        return max(1, -((now - self.resets_at) // timedelta(seconds=1)))

    def details(self) -> dict[str, str | int | bool]:
        """The wire's fields besides code and message (B16.4); credits buy no reset yet."""
        return {
            "window": self.window,
            "resets_at": f"{self.resets_at:%Y-%m-%dT%H:%M:%SZ}",
            "reason": self.reason,
            "reset_cost_cents": 0,
            "can_reset": False,
        }


def _sentence(limit: LimitReached) -> str:
    when = f"{limit.resets_at:%A, %d %B %Y, %H:%M} UTC"
    if limit.reason == "held":
        return f"Your running chats have taken up the rest of your {limit.window} limit. It resets on {when}."
    return f"You have reached your {limit.window} limit. It resets on {when}."
