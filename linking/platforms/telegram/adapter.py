"""The Telegram adapter: webhooks with a secret header, HTML messages and inline buttons over the Bot API."""

from __future__ import annotations

import hmac
import html
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, TypeVar

from linking.platforms.base import (
    JSON_TYPE,
    MALFORMED_ANSWER_ERRORS,
    AttachedFile,
    BotIdentity,
    ButtonPressed,
    CallRefused,
    ChatUnreachable,
    ConversationScope,
    FormatRefused,
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
    PlatformUnavailable,
    RenderedText,
    SignatureInvalid,
    WebhookRequest,
    WebhookResult,
)
from linking.platforms.markup import MarkupStyle, convert_markdown
from linking.platforms.rate_limits import CallLimit, CallLimiter
from linking.platforms.telegram import wire
from linking.platforms.text_split import count_utf16_units

if TYPE_CHECKING:
    from telegram import Bot, InlineKeyboardMarkup
    from telegram.error import BadRequest, TelegramError
    from telegram.request import HTTPXRequest


UNREACHABLE_TEXTS = (
    *("chat not found", "user not found", "have no rights", "not enough rights", "chat_write_forbidden"),
    *("topic_closed", "topic_deleted", "message thread not found"),
    *("chat_restricted", "chat_send_plain_forbidden"),
)
MESSAGE_GONE_TEXTS = ("message to edit not found", "message can't be edited", "message_id_invalid")

T = TypeVar("T")


class GroupMoved(ChatUnreachable):
    """A group became a supergroup with a new id."""

    def __init__(self, new_id: str) -> None:
        super().__init__("the group has moved")
        self.new_id = new_id


async def translate_errors(call: Awaitable[T], unchanged: T | None = None) -> T:
    """Await the call and raise its errors as PlatformError. `unchanged` is the result if an edit changes nothing."""
    from telegram.error import BadRequest, TelegramError

    try:
        return await call
    except BadRequest as problem:
        if unchanged is not None and "not modified" in problem.message:
            return unchanged
        raise _to_refusal(problem) from None
    except TelegramError as problem:
        raise to_platform_error(problem) from None
    except MALFORMED_ANSWER_ERRORS as problem:
        raise PlatformUnavailable(f"malformed response from Telegram: {type(problem).__name__}") from None


def _to_refusal(problem: BadRequest) -> PlatformError:
    text = problem.message.lower()
    if "parse entities" in text or "unsupported start tag" in text:
        return FormatRefused("Telegram cannot parse the markup")
    if any(known in text for known in MESSAGE_GONE_TEXTS):
        return MessageGone("the message no longer exists on Telegram")
    if any(known in text for known in UNREACHABLE_TEXTS):
        return ChatUnreachable("the bot may not write to this Telegram chat")
    return CallRefused("Telegram refused the call")


def _parse_seconds(wait: object) -> float:
    # The library passes on whatever Telegram sent.
    if isinstance(wait, timedelta):
        return wait.total_seconds()
    return float(wait) if isinstance(wait, int) else 0.0


def to_platform_error(problem: TelegramError) -> PlatformError:
    from telegram.error import ChatMigrated, Forbidden, InvalidToken, RetryAfter

    match problem:
        case RetryAfter():
            return PlatformBusy(_parse_seconds(problem.retry_after))
        case ChatMigrated():
            return GroupMoved(str(problem.new_chat_id))
        case Forbidden():
            return ChatUnreachable("the bot may not write to this Telegram chat")
        case InvalidToken():
            return CallRefused("Telegram rejected the bot token")
        case _:
            return PlatformUnavailable(f"Telegram did not answer: {type(problem).__name__}")


ALLOWED_UPDATES = ("message", "callback_query", "my_chat_member")
CONNECTIONS, KEPT_CONNECTIONS = 64, 8  # few are kept alive, because every call looks through them
# The limits of Telegram's FAQ; edits count like messages.
OVERALL_LIMIT = CallLimit(calls=30, seconds=1.0, kept=10)
CHAT_LIMIT = CallLimit(calls=3, seconds=3.0, kept=1)  # about one a second
GROUP_LIMIT = CallLimit(calls=20, seconds=60.0, kept=8)
MAX_PRESS_ANSWER_CHARACTERS = 200  # Telegram's limit
_TAG_PATTERN = re.compile(r"<[^<>]+>")


def _format_quote(text: str) -> str:
    # Telegram does not allow nested quotes.
    return f"<blockquote>{text.replace('<blockquote>', '').replace('</blockquote>', '')}</blockquote>"


def _format_code_block(code: str, language: str) -> str:
    if not language:
        return f"<pre>{html.escape(code, quote=False)}</pre>"
    return (
        f'<pre><code class="language-{html.escape(language)}">{html.escape(code, quote=False)}</code></pre>'
    )


TELEGRAM_STYLE = MarkupStyle(
    escape=lambda text: html.escape(text, quote=False),
    bold=("<b>", "</b>"),
    italic=("<i>", "</i>"),
    struck=("<s>", "</s>"),
    code=lambda text: f"<code>{html.escape(text, quote=False)}</code>",
    block=_format_code_block,
    link=lambda address, label: f'<a href="{html.escape(address)}">{label}</a>',
    quote=_format_quote,
)


def render_markdown(text: str) -> RenderedText:
    """Convert Markdown to Telegram's HTML; text that would render to nothing is escaped instead."""
    markup = convert_markdown(text, TELEGRAM_STYLE)
    shown = markup if _strip_markup(markup).strip() else TELEGRAM_STYLE.escape(text)
    return RenderedText(markup=shown, plain=text)


def measure_text(body: RenderedText) -> int:
    """Count UTF-16 units without tags, as Telegram does; the plain text has to fit too."""
    return max(count_utf16_units(_strip_markup(body.markup)), count_utf16_units(body.plain))


def _strip_markup(markup: str) -> str:
    return html.unescape(_TAG_PATTERN.sub("", markup))


class TelegramAdapter(PlatformAdapter):
    platform: ClassVar[str] = "telegram"
    text_limit: ClassVar[int] = 4096
    length_unit: ClassVar[LengthUnit] = "utf16"
    chunk_target: ClassVar[int] = 3900
    min_edit_interval_seconds: ClassVar[dict[ConversationScope, float]] = {"dm": 1.2, "server": 3.5}
    webhook_content_types: ClassVar[tuple[str, ...]] = (JSON_TYPE,)
    typing_ttl_seconds: ClassVar[float] = 5.0
    ack_deadline: ClassVar[float] = 5.0
    max_buttons: ClassVar[int] = 8
    button_payload_bytes: ClassVar[int] = 64
    button_label_characters: ClassVar[int] = 64
    max_file_bytes: ClassVar[int] = 50 * 2**20
    supports_edit: ClassVar[bool] = True
    supports_threads: ClassVar[bool] = True
    supports_ephemeral: ClassVar[bool] = False
    supports_typing: ClassVar[bool] = True
    supports_async_delivery: ClassVar[bool] = True

    def __init__(self, *, token: str, secret: str, api_url: str) -> None:
        self.bot_account = token.partition(":")[0]
        self._secret = secret
        self._token = token
        self._api_url = api_url
        self._bot: Bot | None = None
        self._requests: tuple[HTTPXRequest, ...] = ()
        self._identity: BotIdentity | None = None
        self._limiter = CallLimiter()
        self._moved_groups: dict[
            str, str
        ] = {}  # new id by old id, until the update that reports the move is handled

    # --- Webhooks ---

    def verify_signature(self, request: WebhookRequest) -> None:
        secret = request.headers.get("x-telegram-bot-api-secret-token", "")
        if not self._secret or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise SignatureInvalid

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        return WebhookResult(incoming=wire.parse_body(request.body, self.bot_account))

    def needs_completion(self, message: MessageReceived) -> bool:
        return bool(message.names)

    def resolve_mention(self, message: MessageReceived, identity: BotIdentity) -> MessageReceived:
        return wire.resolve_mention(message, identity)

    # --- Calls ---

    def get_bot(self) -> Bot:
        """Return the vendor's client. It is imported on first use, because it is large and many processes never send."""
        if self._bot is None:
            os.environ.setdefault("PTB_TIMEDELTA", "1")  # makes the library use timedeltas
            from httpx import Limits
            from telegram import Bot
            from telegram.request import HTTPXRequest

            limits = Limits(max_connections=CONNECTIONS, max_keepalive_connections=KEPT_CONNECTIONS)
            self._requests = (
                HTTPXRequest(pool_timeout=10.0, httpx_kwargs={"limits": limits}),
                HTTPXRequest(connection_pool_size=1),  # for polling, which holds its connection for a minute
            )
            self._bot = Bot(
                self._token,
                base_url=f"{self._api_url}/bot",
                base_file_url=f"{self._api_url}/file/bot",
                request=self._requests[0],
                get_updates_request=self._requests[1],
            )
        return self._bot

    def render_text(self, text: str) -> RenderedText:
        return render_markdown(text)

    def measure_text(self, body: RenderedText) -> int:
        return measure_text(body)

    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        return await self._call_following_move(to, lambda address: self._send(address, message))

    async def _call_following_move(
        self, to: OutboundAddress, call: Callable[[OutboundAddress], Awaitable[str]]
    ) -> str:
        """Call with the group's current id; call again if Telegram answers that the group has moved."""
        try:
            return await call(self._follow_move(to))
        except GroupMoved as problem:
            self._moved_groups[to.container_id] = problem.new_id
            return await call(self._follow_move(to))

    def _follow_move(self, to: OutboundAddress) -> OutboundAddress:
        # The message to reply to and the topic do not exist in the new group.
        new_id = self._moved_groups.get(to.container_id)
        return to if new_id is None else OutboundAddress(scope=to.scope, container_id=new_id)

    async def _send(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        from telegram import LinkPreviewOptions, ReplyParameters

        anchor = (
            ReplyParameters(message_id=int(to.anchor), allow_sending_without_reply=True)
            if to.anchor
            else None
        )
        bot = self.get_bot()
        thread = int(to.thread_id) if to.thread_id else None

        async def call(text: str, mode: str | None) -> str:
            sent = await bot.send_message(
                chat_id=to.container_id,
                text=text,
                parse_mode=mode,
                # A preview would fetch any URL that a model was tricked into writing, including data encoded in it.
                link_preview_options=LinkPreviewOptions(is_disabled=True),
                message_thread_id=thread,
                reply_parameters=anchor,
                reply_markup=_build_keyboard(message.buttons),
            )
            return str(sent.message_id)

        return await self._send_formatted(to, message, call)

    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None:
        from telegram import LinkPreviewOptions

        if to.container_id in self._moved_groups:
            raise MessageGone("the group has moved")
        bot = self.get_bot()

        async def call(text: str, mode: str | None) -> str:
            await bot.edit_message_text(
                chat_id=to.container_id,
                message_id=int(message_id),
                text=text,
                parse_mode=mode,
                link_preview_options=LinkPreviewOptions(is_disabled=True),
                reply_markup=_build_keyboard(message.buttons),
            )
            return message_id

        try:
            await self._send_formatted(to, message, call, unchanged=message_id)
        except GroupMoved as problem:
            self._moved_groups[to.container_id] = problem.new_id
            raise MessageGone("the group has moved") from None

    async def show_typing(self, to: OutboundAddress) -> None:
        thread = int(to.thread_id) if to.thread_id else None
        await translate_errors(
            self.get_bot().send_chat_action(
                chat_id=to.container_id, action="typing", message_thread_id=thread
            )
        )

    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        # A direct message, which Telegram allows only to people who have started a chat with the bot.
        await self.send_message(OutboundAddress(scope="dm", container_id=user_id), message)

    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        await translate_errors(
            self.get_bot().answer_callback_query(
                callback_query_id=pressed.reply_token, text=text[:MAX_PRESS_ANSWER_CHARACTERS] or None
            )
        )

    async def _send_formatted(
        self,
        to: OutboundAddress,
        message: OutgoingMessage,
        call: Callable[[str, str | None], Awaitable[str]],
        unchanged: str | None = None,
    ) -> str:
        """Send with markup, and again as plain text if Telegram cannot parse the markup."""
        try:
            async with self._acquire_slot(to, passing=message.passing):
                return await translate_errors(call(message.body.markup, "HTML"), unchanged)
        except FormatRefused:
            async with self._acquire_slot(to, passing=message.passing):
                return await translate_errors(call(message.body.plain, None), unchanged)

    def _acquire_slot(
        self, to: OutboundAddress, *, passing: bool = False
    ) -> AbstractAsyncContextManager[None]:
        windows = [("all", OVERALL_LIMIT), (f"chat {to.container_id}", CHAT_LIMIT)]
        if to.scope == "server":
            windows.append((f"group {to.container_id}", GROUP_LIMIT))
        return self._limiter.acquire_slot(windows, passing=passing)

    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        return await self._call_following_move(to, lambda address: self._send_file(address, name, content))

    async def _send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        thread = int(to.thread_id) if to.thread_id else None
        async with self._acquire_slot(to):
            sent = await translate_errors(
                self.get_bot().send_document(
                    chat_id=to.container_id, document=content, filename=name, message_thread_id=thread
                )
            )
        return str(sent.message_id)

    async def fetch_file(self, file: AttachedFile) -> bytes:
        remote_file = await translate_errors(self.get_bot().get_file(file.reference))
        return bytes(await translate_errors(remote_file.download_as_bytearray()))

    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool:
        member = await translate_errors(
            self.get_bot().get_chat_member(chat_id=place.container_id, user_id=int(user_id))
        )
        return member.status in ("administrator", "creator")

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        await translate_errors(self.get_bot().set_my_commands(list(commands.items())))

    async def fetch_identity(self) -> BotIdentity:
        if self._identity is None:
            me = await translate_errors(self.get_bot().get_me())
            self._identity = BotIdentity(account=str(me.id), name=me.username or "")
        return self._identity

    # --- Webhook registration ---

    async def set_webhook(self, url: str) -> None:
        call = self.get_bot().set_webhook(
            url=url,
            secret_token=self._secret,
            allowed_updates=list(ALLOWED_UPDATES),
            drop_pending_updates=False,
        )
        await translate_errors(call)

    async def delete_webhook(self) -> None:
        await translate_errors(self.get_bot().delete_webhook(drop_pending_updates=False))

    async def get_webhook_info(self) -> tuple[str, int, str]:
        """Return the webhook's URL, the number of pending updates and the last error."""
        info = await translate_errors(self.get_bot().get_webhook_info())
        return info.url, info.pending_update_count, info.last_error_message or ""

    async def aclose(self) -> None:
        if self._bot is not None:
            for http_request in self._requests:
                await http_request.shutdown()
            self._bot = None


def _build_keyboard(buttons: Sequence[MessageButton]) -> InlineKeyboardMarkup | None:
    from telegram import InlineKeyboardButton, InlineKeyboardMarkup

    if not buttons:
        return None
    keys = [
        InlineKeyboardButton(button.label, url=button.url)
        if button.url
        else InlineKeyboardButton(button.label, callback_data=button.code)
        for button in buttons
    ]
    return InlineKeyboardMarkup([keys[at : at + 2] for at in range(0, len(keys), 2)])
