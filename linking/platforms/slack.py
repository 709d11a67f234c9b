"""Slack: a door for events, commands and buttons, its Web API for messages in threads (L23)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from config.core.urls import split_url
from linking.platforms import slack_wire
from linking.platforms.base import (
    FORM_TYPE,
    JSON,
    JSON_TYPE,
    NONSENSE,
    Adapter,
    Address,
    Away,
    Busy,
    Button,
    CallRefused,
    Forged,
    FormatRefused,
    Heard,
    Identity,
    Knock,
    LengthUnit,
    MessageGone,
    Outgoing,
    Place,
    PlatformProblem,
    Pressed,
    Rendered,
    Said,
    Scope,
    SentFile,
    Unreachable,
    is_fresh,
)
from linking.platforms.markup import Style, convert, neutralise
from linking.platforms.room import Limit, Room

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient
    from slack_sdk.web.async_slack_response import AsyncSlackResponse

CALL_SECONDS = 15
MANY_NAMES = 10_000
IN_A_CHANNEL = Limit(calls=3, seconds=3.0)  # messages: about one a second
EDITS = Limit(calls=50, seconds=60.0, kept=20)  # of the whole workspace
GONE = ("message_not_found", "cant_update_message", "edit_window_closed", "cant_delete_message")
SHUT = (
    *("channel_not_found", "not_in_channel", "is_archived", "account_inactive", "token_revoked"),
    *("user_not_found", "cannot_dm_bot", "messages_tab_disabled", "user_not_in_channel"),
)
FORBIDDEN = "restricted_action"  # and in one word with it, which action that is
TOO_OFTEN = ("ratelimited", "rate_limited")
OUT_OF_ORDER = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")
UNREADABLE = ("invalid_blocks", "invalid_blocks_format", "invalid_arguments")
_SIGNS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

T = TypeVar("T")


def escaped(text: str) -> str:
    """Slack's three signs; without them nothing a model wrote is a link, a mention or a call to a channel."""
    return neutralise(text).translate(_SIGNS)


def _link(address: str, label: str) -> str:
    clean = escaped(address).replace("|", "%7C").replace(" ", "%20")
    return f"<{clean}|{label.replace('|', '¦')}>"


STYLE = Style(
    escape=escaped,
    bold=("*", "*"),
    italic=("_", "_"),
    struck=("~", "~"),
    code=lambda text: f"`{escaped(text)}`",
    block=lambda code, language: f"```\n{escaped(code)}\n```",
    link=_link,
    quote=lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
)


class Slack(Adapter):
    platform: ClassVar[str] = "slack"
    text_limit: ClassVar[int] = 3000  # of one section
    length_unit: ClassVar[LengthUnit] = "codepoint"
    chunk_target: ClassVar[int] = 2900
    min_edit_interval: ClassVar[dict[Scope, float]] = {"dm": 1.5, "server": 1.5}
    door_types: ClassVar[tuple[str, ...]] = (JSON_TYPE, FORM_TYPE)
    typing_ttl: ClassVar[float] = 0.0
    ack_deadline: ClassVar[float] = 3.0
    max_buttons: ClassVar[int] = 25
    button_payload_bytes: ClassVar[int] = 2000
    button_label_characters: ClassVar[int] = 75
    file_bytes: ClassVar[int] = 50 * 2**20  # workspaces differ; nobody waits for more in a chat
    supports_edit: ClassVar[bool] = True
    supports_threads: ClassVar[bool] = True
    supports_ephemeral: ClassVar[bool] = True
    supports_typing: ClassVar[bool] = False
    supports_async_delivery: ClassVar[bool] = True

    def __init__(self, *, app_id: str, signing_secret: str, token: str, api_url: str) -> None:
        self.bot_account = app_id
        self._secret = signing_secret
        self._token = token
        self._api_url = api_url
        self._client: AsyncWebClient | None = None
        self._room = Room()
        self._names: dict[str, str] = {}

    # --- the door ---

    def verify(self, knock: Knock) -> None:
        stamp = knock.headers.get("x-slack-request-timestamp", "")
        if not self._secret or not is_fresh(stamp):
            raise Forged
        signed = b"v0:" + stamp.encode() + b":" + knock.body
        proof = "v0=" + hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(proof.encode(), knock.headers.get("x-slack-signature", "").encode()):
            raise Forged

    def hear(self, knock: Knock) -> Heard:
        return slack_wire.read(knock.body, knock.headers.get("content-type", ""))

    # --- calls ---

    def render(self, text: str) -> Rendered:
        return Rendered(markup=convert(text, STYLE), plain=escaped(text))

    def measure(self, body: Rendered) -> int:
        return max(len(body.markup), len(body.plain))

    async def send(self, to: Address, message: Outgoing) -> str:
        fields: dict[str, JSON] = {"channel": to.container_id, "thread_ts": to.thread_id or None}
        # A preview would fetch whatever address a model was talked into writing, with all that stands in it.
        fields |= {"unfurl_links": False, "unfurl_media": False}
        lasting = replace(message, passing=False)  # worth a wait: here it is the sign of life
        windows = [(f"channel {to.container_id}", IN_A_CHANNEL)]
        sent = await self._formatted("chat.postMessage", lasting, fields, windows)
        return str(sent.get("ts", ""))

    async def edit(self, to: Address, message_id: str, message: Outgoing) -> None:
        fields: dict[str, JSON] = {"channel": to.container_id, "ts": message_id}
        await self._formatted("chat.update", message, fields, [("edits", EDITS)])

    async def _formatted(
        self,
        method: str,
        message: Outgoing,
        fields: dict[str, JSON],
        windows: Sequence[tuple[str, Limit]] = (),
    ) -> AsyncSlackResponse:
        """In blocks, and once more as bare text where Slack cannot read those; the text is filled in always."""
        fields = fields | {"text": message.body.plain}
        blocks = _blocks(message.body.markup, message.buttons)
        try:
            async with self._room.place(windows, passing=message.passing):
                return await self._call(method, fields | {"blocks": blocks})
        except FormatRefused:
            return await self._bare(method, fields, windows, passing=message.passing)

    async def _bare(
        self, method: str, fields: dict[str, JSON], windows: Sequence[tuple[str, Limit]], *, passing: bool
    ) -> AsyncSlackResponse:
        try:
            async with self._room.place(windows, passing=passing):
                return await self._call(method, fields | {"blocks": []})
        except FormatRefused:  # it was not about the blocks
            raise CallRefused("Slack refused a call") from None

    async def show_typing(self, to: Address) -> None:
        """Slack shows none for bots: the placeholder is the sign of life."""

    async def whisper(self, to: Address, user_id: str, message: Outgoing) -> None:
        fields: dict[str, JSON] = {
            "channel": to.container_id,
            "user": user_id,
            "thread_ts": to.thread_id or None,
        }
        await self._formatted("chat.postEphemeral", message, fields)

    async def answer_press(self, to: Address, pressed: Pressed, text: str) -> None:
        """The door's answer was enough for Slack; the words are for the presser."""
        if text:
            await self.whisper(to, pressed.speaker.user_id, Outgoing(body=self.render(text)))

    async def send_file(self, to: Address, name: str, content: bytes) -> str:
        sent = await told(
            self.client().files_upload_v2(
                channel=to.container_id, filename=name, content=content, thread_ts=to.thread_id or None
            )
        )
        files = sent.get("files") or [{}]
        return str(files[0].get("id", ""))

    async def fetch_file(self, file: SentFile) -> bytes:
        """With the bot's token, which goes to Slack alone: files may lie elsewhere."""
        import aiohttp

        if not self._is_slacks(file.reference):
            raise CallRefused("the file does not lie at Slack")
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS * 4)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(file.reference, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise CallRefused("Slack does not give the file")
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise Away(f"Slack did not answer: {type(problem).__name__}") from None

    def _is_slacks(self, address: str) -> bool:
        given, own = split_url(address), split_url(self._api_url)
        if given is None or own is None:
            return False
        if (given.scheme, given.netloc) == (own.scheme, own.netloc):
            return True
        host = given.hostname or ""
        return given.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))

    async def is_admin(self, place: Place, user_id: str) -> bool:
        found = await self._call("users.info", {"user": user_id})
        user: dict[str, JSON] = found.get("user", {})
        return bool(user.get("is_admin") or user.get("is_owner"))

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        """Slack's one command is set up with the app itself."""

    async def server_name(self, place: Place) -> str:
        """There is one workspace (L23)."""
        found = await self._call("auth.test", {})
        return str(found.get("team", "")) or place.server_name

    def is_incomplete(self, said: Said) -> bool:
        """Slack's events name nobody."""
        return not said.speaker.name and said.mentioned

    async def complete(self, said: Said) -> Said:
        name = await self._name_of(said.speaker.user_id)
        return msgspec.structs.replace(said, speaker=msgspec.structs.replace(said.speaker, name=name))

    async def _name_of(self, user_id: str) -> str:
        """Asked for once; an app that may not ask does without."""
        if user_id in self._names:
            return self._names[user_id]
        try:
            found = await self._call("users.info", {"user": user_id})
        except (Away, Busy):
            return ""
        except PlatformProblem:
            name = ""
        else:
            name = _display_name(found.get("user", {}))
        if len(self._names) >= MANY_NAMES:
            self._names.clear()
        self._names[user_id] = name
        return name

    async def identify(self) -> Identity:
        found = await self._call("auth.test", {})
        return Identity(account=str(found.get("user_id", "")), name=str(found.get("user", "")))

    async def aclose(self) -> None:
        """Each call has a session of its own; nothing is held."""
        self._client = None

    def client(self) -> AsyncWebClient:
        if self._client is None:
            from slack_sdk.web.async_client import AsyncWebClient

            self._client = AsyncWebClient(
                token=self._token, base_url=f"{self._api_url}/", timeout=CALL_SECONDS, retry_handlers=[]
            )
        return self._client

    async def _call(self, method: str, fields: dict[str, JSON]) -> AsyncSlackResponse:
        given = {name: value for name, value in fields.items() if value is not None}
        return await told(self.client().api_call(method, json=given))


def _blocks(markup: str, buttons: Sequence[Button]) -> list[JSON]:
    blocks: list[JSON] = [{"type": "section", "text": {"type": "mrkdwn", "text": markup}}]
    if buttons:
        blocks.append({"type": "actions", "elements": [_button(button) for button in buttons]})
    return blocks


def _button(button: Button) -> JSON:
    made: dict[str, JSON] = {"type": "button", "text": {"type": "plain_text", "text": button.label}}
    if button.url:
        return made | {"url": button.url, "action_id": f"open:{button.label}"[:255]}
    if button.danger:
        made["style"] = "danger"
    return made | {"value": button.code, "action_id": button.code[:255]}


def _display_name(user: dict[str, JSON]) -> str:
    profile = user.get("profile")
    said = profile if isinstance(profile, dict) else {}
    names = (said.get("display_name"), said.get("real_name"), user.get("real_name"), user.get("name"))
    return next((name for name in names if isinstance(name, str) and name), "")


async def told(call: Awaitable[T]) -> T:
    """The call's answer, or its failure in our words: the library's quote what was sent."""
    import aiohttp
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        return await call
    except SlackApiError as problem:
        raise _refusal(problem) from None
    except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise Away(f"Slack did not answer: {type(problem).__name__}") from None
    except NONSENSE as problem:
        raise Away(f"Slack answered nonsense: {type(problem).__name__}") from None


def _refusal(problem: SlackApiError) -> PlatformProblem:
    answer = problem.response
    status = int(getattr(answer, "status_code", 0))
    data = getattr(answer, "data", None)
    error = str(data.get("error", "")) if isinstance(data, dict) else ""
    if status == 429 or error in TOO_OFTEN:
        return Busy(_seconds(getattr(answer, "headers", {}).get("Retry-After", "")))
    if error in UNREADABLE:
        return FormatRefused("Slack cannot read the blocks")
    if error in GONE:
        return MessageGone("Slack has no such message any more")
    if error in SHUT or error.startswith(FORBIDDEN):
        return Unreachable("Slack lets the bot say nothing there")
    if error in OUT_OF_ORDER:
        return Away(f"Slack answered {error}")
    return Away(f"Slack answered {status}") if status >= 500 else CallRefused("Slack refused a call")


def _seconds(text: str) -> float:
    """Nothing for what is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0
