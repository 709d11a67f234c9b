"""Telegram by its Bot API: a door with a secret header or long polling, HTML messages, inline buttons (L21)."""

from __future__ import annotations

import hmac
import html
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar

from linking.platforms import telegram_wire
from linking.platforms.base import (
    JSON_TYPE,
    Adapter,
    Address,
    Button,
    Forged,
    FormatRefused,
    Heard,
    Identity,
    Knock,
    LengthUnit,
    MessageGone,
    Outgoing,
    Place,
    Pressed,
    Rendered,
    Said,
    Scope,
    SentFile,
)
from linking.platforms.lengths import utf16
from linking.platforms.markup import Style, convert
from linking.platforms.room import Limit, Room
from linking.platforms.telegram_problems import GroupMoved, told

if TYPE_CHECKING:
    from telegram import Bot, InlineKeyboardMarkup
    from telegram.request import HTTPXRequest

ALLOWED_UPDATES = ("message", "callback_query", "my_chat_member")
# What Telegram's own questions and answers name; edits count as messages do.
CONNECTIONS, KEPT_CONNECTIONS = 64, 8  # every call looks at all that are kept
OVERALL = Limit(calls=30, seconds=1.0, kept=10)
IN_A_CHAT = Limit(calls=3, seconds=3.0, kept=1)  # about one a second
IN_A_GROUP = Limit(calls=20, seconds=60.0, kept=8)
NOTE_CHARACTERS = 200  # what Telegram shows to who pressed a button
_TAGS = re.compile(r"<[^<>]+>")


def _quoted(text: str) -> str:
    """Telegram's quotes do not nest."""
    return f"<blockquote>{text.replace('<blockquote>', '').replace('</blockquote>', '')}</blockquote>"


def _block(code: str, language: str) -> str:
    if not language:
        return f"<pre>{html.escape(code, quote=False)}</pre>"
    return (
        f'<pre><code class="language-{html.escape(language)}">{html.escape(code, quote=False)}</code></pre>'
    )


STYLE = Style(
    escape=lambda text: html.escape(text, quote=False),
    bold=("<b>", "</b>"),
    italic=("<i>", "</i>"),
    struck=("<s>", "</s>"),
    code=lambda text: f"<code>{html.escape(text, quote=False)}</code>",
    block=_block,
    link=lambda address, label: f'<a href="{html.escape(address)}">{label}</a>',
    quote=_quoted,
)


def rendered(text: str) -> Rendered:
    """Markup around nothing stays as it was written: a message must show something."""
    markup = convert(text, STYLE)
    shown = markup if _seen(markup).strip() else STYLE.escape(text)
    return Rendered(markup=shown, plain=text)


def measured(body: Rendered) -> int:
    """Telegram counts what is left once the tags are read, in UTF-16; the plain text must fit, too."""
    return max(utf16(_seen(body.markup)), utf16(body.plain))


def _seen(markup: str) -> str:
    return html.unescape(_TAGS.sub("", markup))


class Telegram(Adapter):
    platform: ClassVar[str] = "telegram"
    text_limit: ClassVar[int] = 4096
    length_unit: ClassVar[LengthUnit] = "utf16"
    chunk_target: ClassVar[int] = 3900
    min_edit_interval: ClassVar[dict[Scope, float]] = {"dm": 1.2, "server": 3.5}
    door_types: ClassVar[tuple[str, ...]] = (JSON_TYPE,)
    typing_ttl: ClassVar[float] = 5.0
    ack_deadline: ClassVar[float] = 5.0
    max_buttons: ClassVar[int] = 8
    button_payload_bytes: ClassVar[int] = 64
    button_label_characters: ClassVar[int] = 64
    file_bytes: ClassVar[int] = 50 * 2**20
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
        self._identity: Identity | None = None
        self._room = Room()
        self._moved: dict[str, str] = {}  # groups, until their own update of it is handled

    # --- the door ---

    def verify(self, knock: Knock) -> None:
        given = knock.headers.get("x-telegram-bot-api-secret-token", "")
        if not self._secret or not hmac.compare_digest(given.encode(), self._secret.encode()):
            raise Forged

    def hear(self, knock: Knock) -> Heard:
        return Heard(incoming=telegram_wire.read(knock.body, self.bot_account))

    def is_incomplete(self, said: Said) -> bool:
        return bool(said.names)

    def recognise(self, said: Said, me: Identity) -> Said:
        return telegram_wire.recognised(said, me)

    # --- calls ---

    def bot(self) -> Bot:
        """The vendor's client; loaded here, because it is heavy and many processes never send."""
        if self._bot is None:
            os.environ.setdefault("PTB_TIMEDELTA", "1")  # the library's own switch: times as timedeltas
            from httpx import Limits  # the vendor's own
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

    def render(self, text: str) -> Rendered:
        return rendered(text)

    def measure(self, body: Rendered) -> int:
        return measured(body)

    async def send(self, to: Address, message: Outgoing) -> str:
        return await self._there(to, lambda there: self._send(there, message))

    async def _there(self, to: Address, call: Callable[[Address], Awaitable[str]]) -> str:
        """Where the group is now; once more, if Telegram says only then that it has moved."""
        try:
            return await call(self._follow(to))
        except GroupMoved as problem:
            self._moved[to.container_id] = problem.new_id
            return await call(self._follow(to))

    def _follow(self, to: Address) -> Address:
        """What is answered, and a topic, stayed behind."""
        new_id = self._moved.get(to.container_id)
        return to if new_id is None else Address(scope=to.scope, container_id=new_id)

    async def _send(self, to: Address, message: Outgoing) -> str:
        from telegram import LinkPreviewOptions, ReplyParameters

        anchor = (
            ReplyParameters(message_id=int(to.anchor), allow_sending_without_reply=True)
            if to.anchor
            else None
        )
        bot = self.bot()
        thread = int(to.thread_id) if to.thread_id else None

        async def call(text: str, mode: str | None) -> str:
            sent = await bot.send_message(
                chat_id=to.container_id,
                text=text,
                parse_mode=mode,
                # A preview would fetch whatever address a model was talked into writing, with all that stands in it.
                link_preview_options=LinkPreviewOptions(is_disabled=True),
                message_thread_id=thread,
                reply_parameters=anchor,
                reply_markup=_keyboard(message.buttons),
            )
            return str(sent.message_id)

        return await self._formatted(to, message, call)

    async def edit(self, to: Address, message_id: str, message: Outgoing) -> None:
        from telegram import LinkPreviewOptions

        if to.container_id in self._moved:
            raise MessageGone("the message stayed in the old group")
        bot = self.bot()

        async def call(text: str, mode: str | None) -> str:
            await bot.edit_message_text(
                chat_id=to.container_id,
                message_id=int(message_id),
                text=text,
                parse_mode=mode,
                link_preview_options=LinkPreviewOptions(is_disabled=True),
                reply_markup=_keyboard(message.buttons),
            )
            return message_id

        try:
            await self._formatted(to, message, call, unchanged=message_id)
        except GroupMoved as problem:
            self._moved[to.container_id] = problem.new_id
            raise MessageGone("the message stayed in the old group") from None

    async def show_typing(self, to: Address) -> None:
        thread = int(to.thread_id) if to.thread_id else None
        await told(
            self.bot().send_chat_action(chat_id=to.container_id, action="typing", message_thread_id=thread)
        )

    async def whisper(self, to: Address, user_id: str, message: Outgoing) -> None:
        """A chat of their own with the bot; Telegram allows it only to who has opened one."""
        await self.send(Address(scope="dm", container_id=user_id), message)

    async def answer_press(self, to: Address, pressed: Pressed, text: str) -> None:
        await told(
            self.bot().answer_callback_query(
                callback_query_id=pressed.reply_token, text=text[:NOTE_CHARACTERS] or None
            )
        )

    async def _formatted(
        self,
        to: Address,
        message: Outgoing,
        call: Callable[[str, str | None], Awaitable[str]],
        unchanged: str | None = None,
    ) -> str:
        """With our markup, and once more without it where Telegram cannot read that."""
        try:
            async with self._place(to, passing=message.passing):
                return await told(call(message.body.markup, "HTML"), unchanged)
        except FormatRefused:
            async with self._place(to, passing=message.passing):
                return await told(call(message.body.plain, None), unchanged)

    def _place(self, to: Address, *, passing: bool = False) -> AbstractAsyncContextManager[None]:
        """For one call that says something there."""
        windows = [("all", OVERALL), (f"chat {to.container_id}", IN_A_CHAT)]
        if to.scope == "server":
            windows.append((f"group {to.container_id}", IN_A_GROUP))
        return self._room.place(windows, passing=passing)

    async def send_file(self, to: Address, name: str, content: bytes) -> str:
        return await self._there(to, lambda there: self._send_file(there, name, content))

    async def _send_file(self, to: Address, name: str, content: bytes) -> str:
        thread = int(to.thread_id) if to.thread_id else None
        async with self._place(to):
            sent = await told(
                self.bot().send_document(
                    chat_id=to.container_id, document=content, filename=name, message_thread_id=thread
                )
            )
        return str(sent.message_id)

    async def fetch_file(self, file: SentFile) -> bytes:
        found = await told(self.bot().get_file(file.reference))
        return bytes(await told(found.download_as_bytearray()))

    async def is_admin(self, place: Place, user_id: str) -> bool:
        member = await told(self.bot().get_chat_member(chat_id=place.container_id, user_id=int(user_id)))
        return member.status in ("administrator", "creator")

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        await told(self.bot().set_my_commands(list(commands.items())))

    async def identify(self) -> Identity:
        if self._identity is None:
            me = await told(self.bot().get_me())
            self._identity = Identity(account=str(me.id), name=me.username or "")
        return self._identity

    # --- the webhook ---

    async def set_webhook(self, url: str) -> None:
        call = self.bot().set_webhook(
            url=url,
            secret_token=self._secret,
            allowed_updates=list(ALLOWED_UPDATES),
            drop_pending_updates=False,
        )
        await told(call)

    async def delete_webhook(self) -> None:
        """What waits at Telegram stays there for whoever fetches it."""
        await told(self.bot().delete_webhook(drop_pending_updates=False))

    async def webhook_info(self) -> tuple[str, int, str]:
        """Its address, how many updates wait for it, and what Telegram last complained of."""
        info = await told(self.bot().get_webhook_info())
        return info.url, info.pending_update_count, info.last_error_message or ""

    async def aclose(self) -> None:
        if self._bot is not None:
            for request in self._requests:
                await request.shutdown()
            self._bot = None


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    from telegram import InlineKeyboardButton, InlineKeyboardMarkup

    if not buttons:
        return None
    made = [
        InlineKeyboardButton(button.label, url=button.url)
        if button.url
        else InlineKeyboardButton(button.label, callback_data=button.code)
        for button in buttons
    ]
    return InlineKeyboardMarkup([made[at : at + 2] for at in range(0, len(made), 2)])
