"""The interface of a chat platform: its updates, messages, errors and adapter class, independent of the vendor."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

ConversationScope = Literal["server", "dm"]
LengthUnit = Literal["utf16", "codepoint"]
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
MAX_BODY_BYTES = 1024 * 1024
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"
DEFAULT_RETRY_SECONDS = 1.0  # used if a platform does not say how long to wait
MAX_RETRY_SECONDS = 24 * 3600.0  # answers are not delivered after a day anyway
MAX_SIGNATURE_AGE_SECONDS = 300
_TIMESTAMP_PATTERN = re.compile("[0-9]{1,12}")
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # RecursionError: deeply nested JSON
# Raised by the vendors' clients when a response does not match its documentation.
MALFORMED_ANSWER_ERRORS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


# --- Inbound ---


class PlatformPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a chat; the ids are the platform's own and opaque."""

    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    reply_thread: str = ""  # thread for the answer that is not a conversation of its own
    server_id: str = ""
    server_name: str = ""


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str
    name: str = ""
    role_ids: tuple[str, ...] = ()
    is_admin: bool | None = None  # None: not in the update, so the platform has to be asked


class AttachedFile(msgspec.Struct, frozen=True, kw_only=True):
    reference: str  # used by the adapter to fetch the file
    name: str
    size: int
    type: str = ""


class MessageReceived(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """A message; mentions of the bot and a command's `@bot` are already removed from the text."""

    speaker: Speaker
    message_id: str
    text: str
    mentioned: bool  # the bot was mentioned, replied to or given a command
    reply_to: str = ""
    names: tuple[str, ...] = ()  # mentioned names that may be the bot's
    files: tuple[AttachedFile, ...] = ()
    reply_token: str = ""  # allows a reply to this message for a limited time


class ButtonPressed(msgspec.Struct, frozen=True, kw_only=True, tag="pressed"):
    speaker: Speaker
    message_id: str
    code: str
    reply_token: str  # used to acknowledge the press


class BotRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed"):
    """The bot was removed from the place or from the whole server."""


class ServerMoved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """The server has a new id."""

    new_id: str


class BotUnblocked(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The bot may write here again."""


UpdateContent = MessageReceived | ButtonPressed | BotRemoved | ServerMoved | BotUnblocked


class IncomingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One update of any platform, in the form in which it is stored until it is handled."""

    update_key: str
    message_key: str = ""
    place: PlatformPlace
    what: UpdateContent


@dataclass(frozen=True, kw_only=True)
class WebhookRequest:
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True, kw_only=True)
class WebhookResult:
    """The meaning of a webhook request: an update to store, an immediate response, both or neither."""

    incoming: IncomingUpdate | None = None
    answer: dict[str, JSON] | None = None


def is_recent_timestamp(stamp: str) -> bool:
    """Check a signed time in seconds; it may be neither old nor in the future."""
    return (
        bool(_TIMESTAMP_PATTERN.fullmatch(stamp))
        and abs(time.time() - int(stamp)) <= MAX_SIGNATURE_AGE_SECONDS
    )


class SignatureInvalid(Exception):
    """The signature is missing, wrong or too old, so the request is not from the platform."""


class UpdateMalformed(Exception):
    """The request is from the platform but does not match its documentation."""


# --- Outbound ---


@dataclass(frozen=True, kw_only=True)
class OutboundAddress:
    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    anchor: str = ""  # the message to reply to
    reply_token: str = ""


@dataclass(frozen=True, kw_only=True)
class MessageButton:
    label: str
    code: str = ""
    url: str = ""  # opens a page, instead of sending a code
    danger: bool = False


@dataclass(frozen=True, kw_only=True)
class RenderedText:
    """Text in the platform's own markup, and as plain text for a fallback."""

    markup: str
    plain: str


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    body: RenderedText
    buttons: tuple[MessageButton, ...] = ()
    nonce: str = ""  # the same in every attempt; platforms that support it drop duplicates
    opens: bool = False  # the first message of an answer, which may replace a pending reply
    passing: bool = False  # an intermediate state, which may be skipped


class PlatformError(Exception):
    """A failed call to a platform; the class says how to react. The text never contains ids or people's words."""


class PlatformBusy(PlatformError):
    """Too many calls; try again after a while."""

    def __init__(self, retry_after_seconds: float) -> None:
        # A NaN is not greater than 0, so it becomes the default too.
        seconds = retry_after_seconds if retry_after_seconds > 0 else DEFAULT_RETRY_SECONDS
        self.retry_after_seconds = min(seconds, MAX_RETRY_SECONDS)
        super().__init__(f"retry after {self.retry_after_seconds:g} s")


class PlatformUnavailable(PlatformError):
    """The platform did not respond properly; the call may have been executed."""


class FormatRefused(PlatformError):
    """The platform cannot parse our markup; send plain text instead."""


class MessageGone(PlatformError):
    """The message to edit no longer exists."""


class ChatUnreachable(PlatformError):
    """The bot is blocked, removed or not allowed to write; send nothing more."""


class CallRefused(PlatformError):
    """The platform refuses this call permanently, because of an error on our side."""


@dataclass(frozen=True, kw_only=True)
class BotIdentity:
    account: str
    name: str = ""


class PlatformAdapter(ABC):
    """One bot account on one platform. Every adapter declares all of the attributes below; none has a default."""

    platform: ClassVar[str]
    text_limit: ClassVar[int]
    length_unit: ClassVar[LengthUnit]
    chunk_target: ClassVar[int]
    min_edit_interval_seconds: ClassVar[Mapping[ConversationScope, float]]
    webhook_content_types: ClassVar[tuple[str, ...]]  # of its updates
    typing_ttl_seconds: ClassVar[float]  # 0: no typing indicator
    ack_deadline: ClassVar[float]
    max_buttons: ClassVar[int]
    button_payload_bytes: ClassVar[int]
    button_label_characters: ClassVar[int]
    max_file_bytes: ClassVar[int]  # for sending
    supports_edit: ClassVar[bool]
    supports_threads: ClassVar[bool]
    supports_ephemeral: ClassVar[bool]
    supports_typing: ClassVar[bool]
    supports_async_delivery: ClassVar[bool]

    bot_account: str

    # --- Webhooks ---

    @abstractmethod
    def verify_signature(self, request: WebhookRequest) -> None:
        """Verify the raw bytes in constant time; raise SignatureInvalid."""

    @abstractmethod
    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        """Parse a verified request; raise UpdateMalformed."""

    # --- Calls, which raise PlatformError ---

    @abstractmethod
    def render_text(self, text: str) -> RenderedText:
        """Convert Markdown to the platform's markup, in which mentions must not notify anybody."""

    @abstractmethod
    def measure_text(self, body: RenderedText) -> int:
        """Return the length as the platform counts it, after escaping."""

    @abstractmethod
    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        """Send a message and return its id."""

    @abstractmethod
    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None: ...

    @abstractmethod
    async def show_typing(self, to: OutboundAddress) -> None: ...

    @abstractmethod
    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        """Send a message that only one person can see; raise ChatUnreachable where that is impossible."""

    @abstractmethod
    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        """Acknowledge a button press, with a short text for the person who pressed it."""

    @abstractmethod
    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        """Send a file and return the id of the file or its message."""

    @abstractmethod
    async def fetch_file(self, file: AttachedFile) -> bytes: ...

    @abstractmethod
    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool: ...

    @abstractmethod
    async def fetch_identity(self) -> BotIdentity: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        """Register the bot's commands and their descriptions, on platforms that show them in a list."""

    async def fetch_server_name(self, place: PlatformPlace) -> str:
        """Return the server's name, which most platforms include in each update."""
        return place.server_name

    def needs_completion(self, message: MessageReceived) -> bool:
        """Return True if `complete_message` has to call the platform before the message can be handled."""
        return False

    async def complete_message(self, message: MessageReceived) -> MessageReceived:
        return self.resolve_mention(message, await self.fetch_identity())

    def resolve_mention(self, message: MessageReceived, identity: BotIdentity) -> MessageReceived:
        """Recognize mentions of this bot by its name; most platforms mark mentions themselves."""
        return message


class UpdateFetcher(ABC):
    """Fetch updates from a platform, as an alternative to webhooks."""

    @abstractmethod
    async def prepare(self, *, replace_webhook: bool) -> None:
        """Prepare for the first fetch; raise PlatformMisconfigured if fetching cannot work."""

    @abstractmethod
    def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        """Yield updates as they arrive. Requesting the next batch acknowledges that the last one is stored."""

    @abstractmethod
    async def aclose(self) -> None: ...


class PlatformMisconfigured(Exception):
    """The configuration has to be changed; the text says how, and contains no secrets."""


DECLARED_ATTRIBUTES = tuple(name for name in PlatformAdapter.__annotations__ if name != "bot_account")


def find_undeclared(adapter: type[PlatformAdapter]) -> list[str]:
    """Return the attributes that an adapter does not declare."""
    return [name for name in DECLARED_ATTRIBUTES if not hasattr(adapter, name)]
