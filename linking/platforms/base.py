"""What a chat platform can do and may tell: one set of declarations and values, so that nobody else knows a vendor."""

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
DEFAULT_RETRY_SECONDS = 1.0  # where a platform asks for a wait, and does not say for how long
MAX_RETRY_SECONDS = 24 * 3600.0  # nobody is owed an answer for longer
MAX_SIGNATURE_AGE_SECONDS = 300
_TIMESTAMP_PATTERN = re.compile("[0-9]{1,12}")
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # the last: brackets by the thousand
# What the vendors' clients raise when an answer is not what its documents say.
MALFORMED_ANSWER_ERRORS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


# --- what comes in -----------------------------------------------------------------------------------


class PlatformPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where something was said (L1); ids are the platform's own and opaque."""

    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    reply_thread: str = ""  # where to answer, in a thread that is no conversation of its own
    server_id: str = ""
    server_name: str = ""


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str
    name: str = ""
    role_ids: tuple[str, ...] = ()
    is_admin: bool | None = None  # None: the event does not say; the platform must be asked


class AttachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file somebody sent along; `reference` is what the adapter fetches it by."""

    reference: str
    name: str
    size: int
    type: str = ""


class MessageReceived(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """Words for us; mentions of the bot and a command's `@bot` are taken out of the text already."""

    speaker: Speaker
    message_id: str
    text: str
    mentioned: bool  # or replied to, or commanded
    reply_to: str = ""
    names: tuple[str, ...] = ()  # who else is called in it, where only a name says whether that is us
    files: tuple[AttachedFile, ...] = ()
    reply_token: str = ""  # by which the platform lets us answer this very message for a while


class ButtonPressed(msgspec.Struct, frozen=True, kw_only=True, tag="pressed"):
    """A button; `code` means nothing to anybody but us (L14)."""

    speaker: Speaker
    message_id: str
    code: str
    reply_token: str  # the press itself must be answered


class BotRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed"):
    """The bot was thrown out of the place, or out of the whole server."""


class ServerMoved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """The server has another id now (L21)."""

    new_id: str


class BotUnblocked(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The bot may speak here again."""


UpdateContent = MessageReceived | ButtonPressed | BotRemoved | ServerMoved | BotUnblocked


class IncomingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One update of any platform, as it is stored until it was handled."""

    update_key: str
    message_key: str = ""
    place: PlatformPlace
    what: UpdateContent


@dataclass(frozen=True, kw_only=True)
class WebhookRequest:
    """A request at a platform's door; header names in lower case."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class WebhookResult:
    """What a knock meant: an update to keep, or an answer that is due at once, or both, or nothing."""

    incoming: IncomingUpdate | None = None
    answer: dict[str, JSON] | None = None


def is_recent_timestamp(stamp: str) -> bool:
    """Of a signed time, in seconds: neither old nor from the future, and no number that cannot be reckoned with."""
    return (
        bool(_TIMESTAMP_PATTERN.fullmatch(stamp))
        and abs(time.time() - int(stamp)) <= MAX_SIGNATURE_AGE_SECONDS
    )


class SignatureInvalid(Exception):
    """The request bears no proof, or a wrong or stale one: it is not from the platform."""


class UpdateMalformed(Exception):
    """The request is from the platform and is not what its documents say."""


# --- what goes out -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OutboundAddress:
    """Where an answer belongs."""

    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    anchor: str = ""  # the message that is answered
    reply_token: str = ""


@dataclass(frozen=True, kw_only=True)
class MessageButton:
    label: str
    code: str = ""
    url: str = ""  # instead of a code: leads to a page
    danger: bool = False


@dataclass(frozen=True, kw_only=True)
class RenderedText:
    """A part in the platform's own markup, and as the plain text to fall back on."""

    markup: str
    plain: str


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    body: RenderedText
    buttons: tuple[MessageButton, ...] = ()
    nonce: str = ""  # the same at every try, where the platform drops repetitions by it
    opens: bool = False  # the first that is said in answer: it may take the place of a promised reply
    passing: bool = False  # a step on the way: a later one says the same and more


class PlatformError(Exception):
    """A call to a platform failed; the class says what can be done about it. Never says to whom or what."""


class PlatformBusy(PlatformError):
    """Too many calls; again after a while, whatever a platform may say of how long that is."""

    def __init__(self, retry_after_seconds: float) -> None:
        asked = (
            retry_after_seconds if retry_after_seconds > 0 else DEFAULT_RETRY_SECONDS
        )  # NaN is not above 0 either
        self.retry_after_seconds = min(asked, MAX_RETRY_SECONDS)
        super().__init__(f"asked to wait {self.retry_after_seconds:g} s")


class PlatformUnavailable(PlatformError):
    """The platform did not answer, or not sensibly; the call may have been heard."""


class FormatRefused(PlatformError):
    """It cannot read our markup: the same part goes as plain text."""


class MessageGone(PlatformError):
    """The message to change does not exist any more."""


class ChatUnreachable(PlatformError):
    """The bot is blocked, removed or not allowed there: nothing more is sent."""


class CallRefused(PlatformError):
    """The platform refuses this call for good, for a reason that is ours to mend."""


@dataclass(frozen=True, kw_only=True)
class BotIdentity:
    """Who the bot is on its platform."""

    account: str
    name: str = ""


class PlatformAdapter(ABC):
    """One bot account on one platform. Every fact below is declared by each adapter; none has a default (L16, L19)."""

    platform: ClassVar[str]
    text_limit: ClassVar[int]
    length_unit: ClassVar[LengthUnit]
    chunk_target: ClassVar[int]
    min_edit_interval_seconds: ClassVar[Mapping[ConversationScope, float]]
    webhook_content_types: ClassVar[tuple[str, ...]]  # what its updates are labelled as
    typing_ttl_seconds: ClassVar[float]  # 0: the platform shows none
    ack_deadline: ClassVar[float]
    max_buttons: ClassVar[int]
    button_payload_bytes: ClassVar[int]
    button_label_characters: ClassVar[int]
    max_file_bytes: ClassVar[int]  # the largest file that may be sent
    supports_edit: ClassVar[bool]
    supports_threads: ClassVar[bool]
    supports_ephemeral: ClassVar[bool]
    supports_typing: ClassVar[bool]
    supports_async_delivery: ClassVar[bool]

    bot_account: str

    # --- the door ---

    @abstractmethod
    def verify_signature(self, knock: WebhookRequest) -> None:
        """Over the raw bytes, in constant time; raises `Forged`."""

    @abstractmethod
    def parse_webhook(self, knock: WebhookRequest) -> WebhookResult:
        """What a verified knock means; raises `Unreadable`."""

    # --- calls; each raises a PlatformProblem ---

    @abstractmethod
    def render_text(self, text: str) -> RenderedText:
        """Markdown to the platform's own markup, with nobody pinged by it."""

    @abstractmethod
    def measure_text(self, body: RenderedText) -> int:
        """How long the platform finds it, after escaping."""

    @abstractmethod
    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        """The new message's id."""

    @abstractmethod
    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None: ...

    @abstractmethod
    async def show_typing(self, to: OutboundAddress) -> None: ...

    @abstractmethod
    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        """To one person's eyes alone; `Unreachable` where that is impossible."""

    @abstractmethod
    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        """Tell the platform that a button was heard, and its presser a few words."""

    @abstractmethod
    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        """The id of what was sent."""

    @abstractmethod
    async def fetch_file(self, file: AttachedFile) -> bytes: ...

    @abstractmethod
    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool:
        """Whether somebody administers the server (L4)."""

    @abstractmethod
    async def fetch_identity(self) -> BotIdentity: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        """Tell the platform what the bot understands, where people choose from a list; each with what it does."""

    async def fetch_server_name(self, place: PlatformPlace) -> str:
        """What people call the server; most platforms say so in each update."""
        return place.server_name

    def needs_completion(self, said: MessageReceived) -> bool:
        """Whether the platform must be asked before the words can be understood: see `complete`."""
        return False

    async def complete_message(self, said: MessageReceived) -> MessageReceived:
        return self.resolve_mention(said, await self.fetch_identity())

    def resolve_mention(self, said: MessageReceived, me: BotIdentity) -> MessageReceived:
        """The words as they are meant for this bot; most platforms say so themselves."""
        return said


class UpdateFetcher(ABC):
    """The other way in: updates are fetched by a process of ours, instead of sent to a door (L24)."""

    @abstractmethod
    async def prepare(self, *, replace_webhook: bool) -> None:
        """Before the first fetch; raises `Misconfigured` where fetching cannot work."""

    @abstractmethod
    def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        """Updates as they come; asking for the next batch says that the last one is stored."""

    @abstractmethod
    async def aclose(self) -> None: ...


class PlatformMisconfigured(Exception):
    """It cannot work like this, and waiting does not help; says what to change, and no secret."""


DECLARED_ATTRIBUTES = tuple(name for name in PlatformAdapter.__annotations__ if name != "bot_account")


def find_undeclared(adapter: type[PlatformAdapter]) -> list[str]:
    """The facts an adapter has forgotten to declare."""
    return [name for name in DECLARED_ATTRIBUTES if not hasattr(adapter, name)]
