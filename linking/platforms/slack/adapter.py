"""The Slack adapter: events, commands and buttons by webhook, and threaded messages over the Web API."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from config.core.url_safety import split_url
from linking.platforms.base import (
    FORM_TYPE,
    JSON,
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
    is_recent_timestamp,
)
from linking.platforms.markup import MarkupStyle, convert_markdown, neutralise_mentions
from linking.platforms.rate_limits import CallLimit, CallLimiter
from linking.platforms.slack import wire

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient
    from slack_sdk.web.async_slack_response import AsyncSlackResponse

CALL_TIMEOUT_SECONDS = 15
MAX_CACHED_NAMES = 10_000
CHANNEL_LIMIT = CallLimit(calls=3, seconds=3.0)  # about one message a second
EDIT_LIMIT = CallLimit(calls=50, seconds=60.0, kept=20)  # for the whole workspace
MESSAGE_GONE_CODES = ("message_not_found", "cant_update_message", "edit_window_closed", "cant_delete_message")
UNREACHABLE_CODES = (
    *("channel_not_found", "not_in_channel", "is_archived", "account_inactive", "token_revoked"),
    *("user_not_found", "cannot_dm_bot", "messages_tab_disabled", "user_not_in_channel"),
)
RESTRICTED_CODE_PREFIX = "restricted_action"  # followed by the action
RATE_LIMIT_CODES = ("ratelimited", "rate_limited")
OUTAGE_CODES = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")
FORMAT_CODES = ("invalid_blocks", "invalid_blocks_format", "invalid_arguments")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

T = TypeVar("T")


def escape_text(text: str) -> str:
    """Escape Slack's control characters, so that a model's text contains no links or mentions of its own."""
    return neutralise_mentions(text).translate(_ESCAPES)


def _format_link(address: str, label: str) -> str:
    clean = escape_text(address).replace("|", "%7C").replace(" ", "%20")
    return f"<{clean}|{label.replace('|', '¦')}>"


SLACK_STYLE = MarkupStyle(
    escape=escape_text,
    bold=("*", "*"),
    italic=("_", "_"),
    struck=("~", "~"),
    code=lambda text: f"`{escape_text(text)}`",
    block=lambda code, language: f"```\n{escape_text(code)}\n```",
    link=_format_link,
    quote=lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
)


class SlackAdapter(PlatformAdapter):
    platform: ClassVar[str] = "slack"
    text_limit: ClassVar[int] = 3000  # of one section
    length_unit: ClassVar[LengthUnit] = "codepoint"
    chunk_target: ClassVar[int] = 2900
    min_edit_interval_seconds: ClassVar[dict[ConversationScope, float]] = {"dm": 1.5, "server": 1.5}
    webhook_content_types: ClassVar[tuple[str, ...]] = (JSON_TYPE, FORM_TYPE)
    typing_ttl_seconds: ClassVar[float] = 0.0
    ack_deadline: ClassVar[float] = 3.0
    max_buttons: ClassVar[int] = 25
    button_payload_bytes: ClassVar[int] = 2000
    button_label_characters: ClassVar[int] = 75
    max_file_bytes: ClassVar[int] = 50 * 2**20  # workspaces have different limits
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
        self._limiter = CallLimiter()
        self._names: dict[str, str] = {}

    # --- Webhooks ---

    def verify_signature(self, request: WebhookRequest) -> None:
        stamp = request.headers.get("x-slack-request-timestamp", "")
        if not self._secret or not is_recent_timestamp(stamp):
            raise SignatureInvalid
        signed = b"v0:" + stamp.encode() + b":" + request.body
        proof = "v0=" + hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(proof.encode(), request.headers.get("x-slack-signature", "").encode()):
            raise SignatureInvalid

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        return wire.parse_request(request.body, request.headers.get("content-type", ""))

    # --- Calls ---

    def render_text(self, text: str) -> RenderedText:
        return RenderedText(markup=convert_markdown(text, SLACK_STYLE), plain=escape_text(text))

    def measure_text(self, body: RenderedText) -> int:
        return max(len(body.markup), len(body.plain))

    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        fields: dict[str, JSON] = {"channel": to.container_id, "thread_ts": to.thread_id or None}
        # A preview would fetch any URL that a model was tricked into writing, including data encoded in it.
        fields |= {"unfurl_links": False, "unfurl_media": False}
        # The first message is worth a wait: without typing indicators it is the only sign of progress.
        required = replace(message, passing=False)
        windows = [(f"channel {to.container_id}", CHANNEL_LIMIT)]
        sent = await self._send_formatted("chat.postMessage", required, fields, windows)
        return str(sent.get("ts", ""))

    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None:
        fields: dict[str, JSON] = {"channel": to.container_id, "ts": message_id}
        await self._send_formatted("chat.update", message, fields, [("edits", EDIT_LIMIT)])

    async def _send_formatted(
        self,
        method: str,
        message: OutgoingMessage,
        fields: dict[str, JSON],
        windows: Sequence[tuple[str, CallLimit]] = (),
    ) -> AsyncSlackResponse:
        """Send blocks, and again as plain text if Slack cannot parse them."""
        fields = fields | {"text": message.body.plain}
        blocks = _build_blocks(message.body.markup, message.buttons)
        try:
            async with self._limiter.acquire_slot(windows, passing=message.passing):
                return await self._call(method, fields | {"blocks": blocks})
        except FormatRefused:
            return await self._send_plain(method, fields, windows, passing=message.passing)

    async def _send_plain(
        self, method: str, fields: dict[str, JSON], windows: Sequence[tuple[str, CallLimit]], *, passing: bool
    ) -> AsyncSlackResponse:
        try:
            async with self._limiter.acquire_slot(windows, passing=passing):
                return await self._call(method, fields | {"blocks": []})
        except FormatRefused:  # the blocks were not the reason
            raise CallRefused("Slack refused the call") from None

    async def show_typing(self, to: OutboundAddress) -> None:
        pass  # Slack has no typing indicator for bots

    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        fields: dict[str, JSON] = {
            "channel": to.container_id,
            "user": user_id,
            "thread_ts": to.thread_id or None,
        }
        await self._send_formatted("chat.postEphemeral", message, fields)

    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        # The webhook response has acknowledged the press already.
        if text:
            await self.send_private(to, pressed.speaker.user_id, OutgoingMessage(body=self.render_text(text)))

    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        sent = await translate_errors(
            self.get_client().files_upload_v2(
                channel=to.container_id, filename=name, content=content, thread_ts=to.thread_id or None
            )
        )
        files = sent.get("files") or [{}]
        return str(files[0].get("id", ""))

    async def fetch_file(self, file: AttachedFile) -> bytes:
        """Fetch a file with the bot's token, which is sent to Slack only; raise CallRefused for other hosts."""
        import aiohttp

        if not self._is_slack_url(file.reference):
            raise CallRefused("the file is not hosted by Slack")
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_SECONDS * 4)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(file.reference, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise CallRefused("Slack refused to return the file")
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise PlatformUnavailable(f"Slack did not answer: {type(problem).__name__}") from None

    def _is_slack_url(self, address: str) -> bool:
        url, api_url = split_url(address), split_url(self._api_url)
        if url is None or api_url is None:
            return False
        if (url.scheme, url.netloc) == (api_url.scheme, api_url.netloc):
            return True
        host = url.hostname or ""
        return url.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))

    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool:
        found = await self._call("users.info", {"user": user_id})
        user: dict[str, JSON] = found.get("user", {})
        return bool(user.get("is_admin") or user.get("is_owner"))

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        pass  # Slack's command is part of the app's configuration

    async def fetch_server_name(self, place: PlatformPlace) -> str:
        found = await self._call("auth.test", {})
        return str(found.get("team", "")) or place.server_name

    def needs_completion(self, message: MessageReceived) -> bool:
        return not message.speaker.name and message.mentioned

    async def complete_message(self, message: MessageReceived) -> MessageReceived:
        name = await self._fetch_name(message.speaker.user_id)
        return msgspec.structs.replace(message, speaker=msgspec.structs.replace(message.speaker, name=name))

    async def _fetch_name(self, user_id: str) -> str:
        """Return somebody's display name, cached; "" if the app lacks the permission."""
        if user_id in self._names:
            return self._names[user_id]
        try:
            found = await self._call("users.info", {"user": user_id})
        except (PlatformUnavailable, PlatformBusy):
            return ""
        except PlatformError:
            name = ""
        else:
            name = _get_display_name(found.get("user", {}))
        if len(self._names) >= MAX_CACHED_NAMES:
            self._names.clear()
        self._names[user_id] = name
        return name

    async def fetch_identity(self) -> BotIdentity:
        found = await self._call("auth.test", {})
        return BotIdentity(account=str(found.get("user_id", "")), name=str(found.get("user", "")))

    async def aclose(self) -> None:
        self._client = None  # each call has its own HTTP session, so there is nothing to close

    def get_client(self) -> AsyncWebClient:
        if self._client is None:
            from slack_sdk.web.async_client import AsyncWebClient

            self._client = AsyncWebClient(
                token=self._token,
                base_url=f"{self._api_url}/",
                timeout=CALL_TIMEOUT_SECONDS,
                retry_handlers=[],
            )
        return self._client

    async def _call(self, method: str, fields: dict[str, JSON]) -> AsyncSlackResponse:
        body = {name: value for name, value in fields.items() if value is not None}
        return await translate_errors(self.get_client().api_call(method, json=body))


def _build_blocks(markup: str, buttons: Sequence[MessageButton]) -> list[JSON]:
    blocks: list[JSON] = [{"type": "section", "text": {"type": "mrkdwn", "text": markup}}]
    if buttons:
        blocks.append({"type": "actions", "elements": [_build_button(button) for button in buttons]})
    return blocks


def _build_button(button: MessageButton) -> JSON:
    element: dict[str, JSON] = {"type": "button", "text": {"type": "plain_text", "text": button.label}}
    if button.url:
        return element | {"url": button.url, "action_id": f"open:{button.label}"[:255]}
    if button.danger:
        element["style"] = "danger"
    return element | {"value": button.code, "action_id": button.code[:255]}


def _get_display_name(user: dict[str, JSON]) -> str:
    value = user.get("profile")
    profile = value if isinstance(value, dict) else {}
    names = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
    return next((name for name in names if isinstance(name, str) and name), "")


async def translate_errors(call: Awaitable[T]) -> T:
    """Await the call and raise its errors as PlatformError. The library's own texts quote what was sent."""
    import aiohttp
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        return await call
    except SlackApiError as problem:
        raise _to_platform_error(problem) from None
    except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise PlatformUnavailable(f"Slack did not answer: {type(problem).__name__}") from None
    except MALFORMED_ANSWER_ERRORS as problem:
        raise PlatformUnavailable(f"malformed response from Slack: {type(problem).__name__}") from None


def _to_platform_error(problem: SlackApiError) -> PlatformError:
    answer = problem.response
    status = int(getattr(answer, "status_code", 0))
    data = getattr(answer, "data", None)
    error = str(data.get("error", "")) if isinstance(data, dict) else ""
    if status == 429 or error in RATE_LIMIT_CODES:
        return PlatformBusy(_parse_seconds(getattr(answer, "headers", {}).get("Retry-After", "")))
    if error in FORMAT_CODES:
        return FormatRefused("Slack cannot parse the blocks")
    if error in MESSAGE_GONE_CODES:
        return MessageGone("the message no longer exists on Slack")
    if error in UNREACHABLE_CODES or error.startswith(RESTRICTED_CODE_PREFIX):
        return ChatUnreachable("the bot may not write to this Slack channel")
    if error in OUTAGE_CODES:
        return PlatformUnavailable(f"Slack answered {error}")
    return (
        PlatformUnavailable(f"Slack answered {status}")
        if status >= 500
        else CallRefused("Slack refused the call")
    )


def _parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
