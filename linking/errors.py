"""Errors of linking with their HTTP status and code.

RequestRefused (config.core.errors)
├── LinkNotFound         404 not_found             no such token or link
├── NotLinked            404 not_linked            nobody has claimed this server or chat account
├── NotAuthorised        403 forbidden             somebody else's link
├── NotServerAdmin       403 not_server_admin      only who administers a server may ask for its link
├── InsufficientScope    403 insufficient_scope    the bot's key lacks it
├── PlatformMismatch     403 platform_mismatch     a key speaks for one platform alone
├── BotUnauthenticated   401 unauthenticated       no key or a bad one; which, is nobody's business
├── AmbiguousCredentials 400 ambiguous_credentials a person's and a bot's credentials in one request
├── LinkFlowMismatch     400 flow_mismatch         a token for the other kind of link
├── LinkAlreadyExists    409 already_linked, already_yours
├── LinkTokenExpired     410 token_expired         used, superseded or too old
├── RateLimited          429 too_many_requests
└── MessageRefused       403 or 429 …              a message in a server that its owner's settings do not admit
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
    """Unknown tokens and links look the same."""


class NotLinked(RequestRefused):
    status = 404
    default_code = "not_linked"

    def __init__(self, message: str = "This is not linked to an account.") -> None:
        super().__init__(message, hint="Ask the bot for a link, and confirm it on the web.")


class NotAuthorised(Forbidden):
    def __init__(self) -> None:
        super().__init__("This link belongs to somebody else.")


class NotServerAdmin(Forbidden):
    default_code = "not_server_admin"

    def __init__(self) -> None:
        super().__init__("Only who administers the server may ask for its link.")


class InsufficientScope(Forbidden):
    default_code = "insufficient_scope"

    def __init__(self, scope: str) -> None:
        super().__init__(f"The key lacks the scope {scope}.", scope=scope)


class PlatformMismatch(Forbidden):
    default_code = "platform_mismatch"

    def __init__(self) -> None:
        super().__init__("The key belongs to another platform.")


class BotUnauthenticated(RequestRefused):
    """Unknown, wrong, revoked, expired, from another network: one body for all."""

    status = 401
    default_code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("A valid bot key is needed.", hint="Send Authorization: Bearer <bot key>.")


class AmbiguousCredentials(InvalidRequest):
    default_code = "ambiguous_credentials"

    def __init__(self) -> None:
        super().__init__("Send a bot's key or a person's credentials, not both.")


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


# What a channel is told: the remedy, never an amount or who pays.
REFUSAL_MESSAGES: dict[RefusalReason, tuple[int, str]] = {
    "bot_removed": (403, "I was removed from this server. Add me again, and ask for a new link."),
    "link_paused": (403, "I am paused in this server. Whoever connected me can resume me in the settings."),
    "channel_not_allowed": (403, "I may not answer in this channel. Try one where I am allowed."),
    "role_not_allowed": (403, "Your role may not talk to me here. Ask whoever runs this server."),
    "mention_required": (403, "Mention me when you want an answer."),
    "member_rate_reached": (429, "You have asked a lot in the last hour. Please try again a little later."),
    "channel_rate_reached": (
        429,
        "There were many messages in this channel. Please try again in some minutes.",
    ),
    "cap_reached": (
        429,
        "The limit for this server is used up. Whoever connected me can raise it, or wait until it renews.",
    ),
    "limit_reached": (
        429,
        "I cannot answer here at the moment. Whoever connected me can see why in their settings.",
    ),
}


class MessageRefused(RequestRefused):
    """A message that starts no turn and costs nothing. `aloud`: whether the channel is told."""

    def __init__(
        self, reason: RefusalReason, *, aloud: bool = True, retry_after_seconds: int | None = None
    ) -> None:
        self.status, sentence = REFUSAL_MESSAGES[reason]
        super().__init__(sentence, code=reason, retry_after_seconds=retry_after_seconds)
        self.reason: RefusalReason = reason
        self.aloud = aloud
