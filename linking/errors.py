"""Errors of linking with their HTTP status and code.

RequestRefused (config.core.errors)
├── LinkNotFound         404 not_found             no such token or link
├── NotLinked            404 not_linked            no account is linked to this server or chat account
├── NotAuthorised        403 forbidden             somebody else's link
├── NotServerAdmin       403 not_server_admin      only an admin of the server can request its link
├── InsufficientScope    403 insufficient_scope    the bot key lacks the scope
├── PlatformMismatch     403 platform_mismatch     the key belongs to another platform
├── BotUnauthenticated   401 unauthenticated       no valid key; the response does not say why
├── AmbiguousCredentials 400 ambiguous_credentials a person's and a bot's credentials in one request
├── LinkFlowMismatch     400 flow_mismatch         a token for the other kind of link
├── LinkAlreadyExists    409 already_linked, already_yours
├── LinkTokenExpired     410 token_expired         used, superseded or too old
├── RateLimited          429 too_many_requests
└── MessageRefused       403 or 429 …              a message that the owner's settings for the server refuse
"""

from __future__ import annotations

from typing import Literal

from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, RequestRefused, TooManyRequests

RefusalReason = Literal[
    "bot_removed",
    "link_paused",
    "channel_not_allowed",
    "role_not_allowed",
    "mention_required",
    "member_rate_reached",
    "channel_rate_reached",
    "cap_reached",
    "limit_reached",
]


class LinkNotFound(NotFound):
    """Raised both for unknown tokens and for links that do not exist."""


class NotLinked(RequestRefused):
    status = 404
    default_code = "not_linked"

    def __init__(self, message: str = "This isn't linked to an account.") -> None:
        super().__init__(message, hint="Ask the bot for a link, and confirm it on the web.")


class NotAuthorised(Forbidden):
    def __init__(self) -> None:
        super().__init__("This link belongs to another account.")


class NotServerAdmin(Forbidden):
    default_code = "not_server_admin"

    def __init__(self) -> None:
        super().__init__("Only an admin of the server can request its link.")


class InsufficientScope(Forbidden):
    default_code = "insufficient_scope"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This key doesn't have the scope {scope}.", scope=scope)


class PlatformMismatch(Forbidden):
    default_code = "platform_mismatch"

    def __init__(self) -> None:
        super().__init__("This key belongs to another platform.")


class BotUnauthenticated(RequestRefused):
    """Raised for unknown, wrong, revoked and expired keys, and for other networks, without saying which."""

    status = 401
    default_code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("A valid bot key is required.", hint="Send Authorization: Bearer <bot key>.")


class AmbiguousCredentials(InvalidRequest):
    default_code = "ambiguous_credentials"

    def __init__(self) -> None:
        super().__init__("Send either a bot key or a person's credentials, not both.")


class LinkFlowMismatch(InvalidRequest):
    default_code = "flow_mismatch"

    def __init__(self) -> None:
        super().__init__("This token is for the other kind of link.")


class LinkAlreadyExists(Conflict):
    default_code = "already_linked"

    def __init__(self, *, yours: bool = False) -> None:
        if yours:
            super().__init__("This is already linked to your account.", code="already_yours")
        else:
            super().__init__("This is already linked to an account.")


class LinkTokenExpired(RequestRefused):
    status = 410
    default_code = "token_expired"

    def __init__(self) -> None:
        super().__init__("This link is no longer valid.", hint="Ask the bot for a new one.")


class RateLimited(TooManyRequests):
    def __init__(self, *, retry_after_seconds: int) -> None:
        super().__init__(
            "Too many requests. Please slow down.", retry_after_seconds=max(1, retry_after_seconds)
        )


# Texts for channels. They name the remedy, never an amount or the payer.
REFUSAL_MESSAGES: dict[RefusalReason, tuple[int, str]] = {
    "bot_removed": (403, "I was removed from this server. Add me again, then send /link."),
    "link_paused": (
        403,
        "I'm paused in this server. The person who connected me can resume me in their settings.",
    ),
    "channel_not_allowed": (403, "I can't answer in this channel. Try another one."),
    "role_not_allowed": (403, "Your role can't use me here. Ask an admin of this server."),
    "mention_required": (403, "Mention me to get an answer."),
    "member_rate_reached": (429, "You've reached this server's hourly limit. Try again later."),
    "channel_rate_reached": (
        429,
        "This channel is busy. Try again in a few minutes.",
    ),
    "cap_reached": (
        429,
        "This server has reached its limit. The person who connected me can raise it, or you can wait until it resets.",
    ),
    "limit_reached": (
        429,
        "I can't answer here right now. The person who connected me can see why in their settings.",
    ),
}


class MessageRefused(RequestRefused):
    """Raised for a message that starts no turn and costs nothing. `is_announced`: whether the channel gets the reason."""

    def __init__(
        self, reason: RefusalReason, *, is_announced: bool = True, retry_after_seconds: int | None = None
    ) -> None:
        self.status, sentence = REFUSAL_MESSAGES[reason]
        super().__init__(sentence, code=reason, retry_after_seconds=retry_after_seconds)
        self.reason: RefusalReason = reason
        self.is_announced = is_announced
