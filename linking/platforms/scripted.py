"""An in-memory chat platform for development and tests, with limits, its own clock and scripted failures."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, ClassVar

import msgspec
import structlog

from linking.platforms.base import (
    JSON_ERRORS,
    JSON_TYPE,
    AttachedFile,
    BotIdentity,
    ButtonPressed,
    CallRefused,
    ConversationScope,
    IncomingUpdate,
    LengthUnit,
    MessageButton,
    MessageGone,
    MessageReceived,
    OutboundAddress,
    OutgoingMessage,
    PlatformAdapter,
    PlatformBusy,
    PlatformError,
    PlatformPlace,
    RenderedText,
    SignatureInvalid,
    Speaker,
    UpdateFetcher,
    UpdateMalformed,
    WebhookRequest,
    WebhookResult,
)
from linking.platforms.markup import neutralise_mentions

log = structlog.get_logger(__name__)

SECRET_HEADER = "x-scripted-secret"  # noqa: S105
SCRIPTED_ACCOUNT = "scripted-bot"


@dataclass(frozen=True, kw_only=True)
class PostedMessage:
    id: str
    container_id: str
    thread_id: str
    text: str
    buttons: tuple[MessageButton, ...] = ()
    only_for: str = ""  # visible to this user alone
    edits: int = 0


@dataclass
class ScriptedWorld:
    """The state of the platform. Calls come from one event loop; tests read it from other threads."""

    clock: Callable[[], float] = time.monotonic
    posted: dict[str, PostedMessage] = field(default_factory=dict)
    typing: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)  # reply token and text
    files: list[tuple[str, bytes]] = field(default_factory=list)
    failures: deque[PlatformError | None] = field(default_factory=deque)
    admins: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _nonces: dict[str, str] = field(default_factory=dict)
    _edited: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record_call(self, name: str) -> None:
        """Record a call, and raise the next scripted failure; typing indicators never fail."""
        with self._lock:
            self.calls.append(name)
            problem = self.failures.popleft() if self.failures and name != "typing" else None
        if problem is not None:
            raise problem

    def post_message(self, to: OutboundAddress, message: OutgoingMessage, *, only_for: str = "") -> str:
        _check_limits(message)
        with self._lock:
            if message.nonce and message.nonce in self._nonces:
                return self._nonces[message.nonce]
            posted = PostedMessage(
                id=f"m{next(self._numbers)}",
                container_id=to.container_id,
                thread_id=to.thread_id,
                text=message.body.markup,
                buttons=message.buttons,
                only_for=only_for,
            )
            self.posted[posted.id] = posted
            self._edited[posted.id] = self.clock()
            if message.nonce:
                self._nonces[message.nonce] = posted.id
            return posted.id

    def edit_message(self, message_id: str, message: OutgoingMessage, *, interval: float) -> None:
        _check_limits(message)
        with self._lock:
            known = self.posted.get(message_id)
            if known is None:
                raise MessageGone("no such message")
            now = self.clock()
            if now - self._edited[message_id] < interval * 0.9:  # tolerates a small difference between clocks
                raise PlatformBusy(interval)
            self._edited[message_id] = now
            self.posted[message_id] = replace(
                known, text=message.body.markup, buttons=message.buttons, edits=known.edits + 1
            )

    def list_messages(self, container_id: str) -> list[PostedMessage]:
        with self._lock:
            return [message for message in self.posted.values() if message.container_id == container_id]


SHARED_WORLD = ScriptedWorld()  # one per process


def _check_limits(message: OutgoingMessage) -> None:
    if not message.body.markup.strip():
        raise CallRefused("empty message")
    if len(message.body.markup) > ScriptedAdapter.text_limit:
        raise CallRefused("message too long")
    if len(message.buttons) > ScriptedAdapter.max_buttons:
        raise CallRefused("too many buttons")
    if any(len(button.code.encode()) > ScriptedAdapter.button_payload_bytes for button in message.buttons):
        raise CallRefused("button payload too large")


class ScriptedAdapter(PlatformAdapter):
    platform: ClassVar[str] = "scripted"
    text_limit: ClassVar[int] = 1000
    length_unit: ClassVar[LengthUnit] = "codepoint"
    chunk_target: ClassVar[int] = 900
    min_edit_interval_seconds: ClassVar[dict[ConversationScope, float]] = {"dm": 0.05, "server": 0.05}
    webhook_content_types: ClassVar[tuple[str, ...]] = (JSON_TYPE,)
    typing_ttl_seconds: ClassVar[float] = 5.0
    ack_deadline: ClassVar[float] = 3.0
    max_buttons: ClassVar[int] = 8
    button_payload_bytes: ClassVar[int] = 64
    button_label_characters: ClassVar[int] = 64
    max_file_bytes: ClassVar[int] = 100_000
    supports_edit: ClassVar[bool] = True
    supports_threads: ClassVar[bool] = True
    supports_ephemeral: ClassVar[bool] = True
    supports_typing: ClassVar[bool] = True
    supports_async_delivery: ClassVar[bool] = True

    def __init__(self, *, secret: str, world: ScriptedWorld | None = None) -> None:
        self.bot_account = SCRIPTED_ACCOUNT
        self._secret = secret
        self.world = world or ScriptedWorld()

    def verify_signature(self, request: WebhookRequest) -> None:
        if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), self._secret.encode()):
            raise SignatureInvalid

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        try:
            return WebhookResult(incoming=msgspec.json.decode(request.body, type=IncomingUpdate))
        except JSON_ERRORS as problem:
            raise UpdateMalformed from problem

    def render_text(self, text: str) -> RenderedText:
        safe = neutralise_mentions(text)
        return RenderedText(markup=safe, plain=safe)

    def measure_text(self, body: RenderedText) -> int:
        return len(body.markup)

    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        self.world.record_call("send")
        return self.world.post_message(to, message)

    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None:
        self.world.record_call("edit")
        self.world.edit_message(message_id, message, interval=self.min_edit_interval_seconds[to.scope])

    async def show_typing(self, to: OutboundAddress) -> None:
        self.world.record_call("typing")
        self.world.typing.append(to.container_id)

    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        self.world.record_call("whisper")
        self.world.post_message(to, message, only_for=user_id)

    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        self.world.record_call("answer_press")
        self.world.notes.append((pressed.reply_token, text))

    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        self.world.record_call("send_file")
        if len(content) > self.max_file_bytes:
            raise CallRefused("file too large")
        self.world.files.append((name, content))
        return f"f{len(self.world.files)}"

    async def fetch_file(self, file: AttachedFile) -> bytes:
        self.world.record_call("fetch_file")
        return file.reference.encode()

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        pass

    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool:
        self.world.record_call("is_admin")
        return user_id in self.world.admins

    async def fetch_identity(self) -> BotIdentity:
        return BotIdentity(account=SCRIPTED_ACCOUNT, name="scripted")

    async def aclose(self) -> None:
        pass


class LineFetcher(UpdateFetcher):
    """Read one update per line: JSON as the webhook takes it, or the text of a direct message."""

    def __init__(self, source: IO[str], *, place: str = "terminal") -> None:
        self._source = source
        self._place = place
        self._numbers = itertools.count(time.time_ns())

    async def prepare(self, *, replace_webhook: bool) -> None:
        pass

    async def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        """Yield updates; after the end of the stream, wait for ever."""
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            with suppress(RuntimeError):  # the loop may be closed by then
                for line in self._source:
                    loop.call_soon_threadsafe(lines.put_nowait, line)

        threading.Thread(target=read, name="lines", daemon=True).start()
        while True:
            if (incoming := self._parse_line((await lines.get()).strip())) is not None:
                yield [incoming]

    def _parse_line(self, line: str) -> IncomingUpdate | None:
        if line.startswith("{"):
            try:
                return msgspec.json.decode(line, type=IncomingUpdate)
            except msgspec.MsgspecError:
                log.warning("update_malformed", platform=ScriptedAdapter.platform)
                return None
        number = str(next(self._numbers))
        message = MessageReceived(
            speaker=Speaker(user_id=self._place), message_id=number, text=line, mentioned=True
        )
        place = PlatformPlace(scope="dm", container_id=self._place)
        return IncomingUpdate(update_key=number, place=place, what=message) if line else None

    async def aclose(self) -> None:
        pass  # the stream belongs to the caller
