"""The Discord adapter: interactions by webhook and messages over the REST API. The gateway delivers plain messages."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from linking.platforms.base import (
    JSON,
    JSON_TYPE,
    MALFORMED_ANSWER_ERRORS,
    AttachedFile,
    BotIdentity,
    ButtonPressed,
    CallRefused,
    ChatUnreachable,
    ConversationScope,
    LengthUnit,
    MessageButton,
    MessageGone,
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
from linking.platforms.discord import wire
from linking.platforms.markup import neutralise_mentions

if TYPE_CHECKING:
    from discord.http import HTTPClient

MAX_RATE_LIMIT_WAIT_SECONDS = 30.0  # the minimum that the client allows
CALL_TIMEOUT_SECONDS = 50.0
PRIMARY, DANGER, LINK = 1, 4, 5  # button styles
STRING_OPTION_TYPE = 3
UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, TOKEN_EXPIRED = 10008, 10015, 10062, 50027
T = TypeVar("T")

SENT_PRIVATELY_TEXT = "I've sent you a private message."
ASK_DESCRIPTION = "Ask the assistant."
NO_MENTIONS: dict[str, JSON] = {"parse": []}


class DiscordAdapter(PlatformAdapter):
    platform: ClassVar[str] = "discord"
    text_limit: ClassVar[int] = 2000
    length_unit: ClassVar[LengthUnit] = "codepoint"
    chunk_target: ClassVar[int] = 1900
    min_edit_interval_seconds: ClassVar[dict[ConversationScope, float]] = {"dm": 1.3, "server": 1.3}
    webhook_content_types: ClassVar[tuple[str, ...]] = (JSON_TYPE,)
    typing_ttl_seconds: ClassVar[float] = 10.0
    ack_deadline: ClassVar[float] = 3.0
    max_buttons: ClassVar[int] = 25
    button_payload_bytes: ClassVar[int] = 100
    button_label_characters: ClassVar[int] = 80
    max_file_bytes: ClassVar[int] = 10 * 2**20
    supports_edit: ClassVar[bool] = True
    supports_threads: ClassVar[bool] = True
    supports_ephemeral: ClassVar[bool] = True
    supports_typing: ClassVar[bool] = True
    supports_async_delivery: ClassVar[bool] = True

    def __init__(self, *, app_id: str, public_key: str, token: str, api_url: str) -> None:
        self.bot_account = app_id
        self.token = token
        self.api_url = api_url
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)) if public_key else None
        self._client: HTTPClient | None = None
        self._opening = asyncio.Lock()

    # --- Webhooks ---

    def verify_signature(self, request: WebhookRequest) -> None:
        stamp = request.headers.get("x-signature-timestamp", "")
        try:
            signature = bytes.fromhex(request.headers.get("x-signature-ed25519", ""))
            if self._key is None or not is_recent_timestamp(stamp):
                raise SignatureInvalid
            self._key.verify(signature, stamp.encode() + request.body)
        except (ValueError, InvalidSignature):
            raise SignatureInvalid from None

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        return wire.parse_interaction(request.body)

    # --- Calls ---

    def render_text(self, text: str) -> RenderedText:
        # Discord renders Markdown itself. Mentions are broken up in addition to `allowed_mentions`.
        safe = neutralise_mentions(text)
        return RenderedText(markup=safe, plain=safe)

    def measure_text(self, body: RenderedText) -> int:
        return len(body.markup)

    async def send_message(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        if to.reply_token:
            return await self._reply(to, message)
        fields = _message_fields(message)
        if message.nonce:
            fields |= {"nonce": message.nonce[:25], "enforce_nonce": True}
        if to.anchor:
            fields["message_reference"] = {"message_id": to.anchor, "fail_if_not_exists": False}
        sent = await self._call(
            "POST", "/channels/{channel_id}/messages", fields, channel_id=_get_channel_id(to)
        )
        return str(sent["id"])

    async def _reply(self, to: OutboundAddress, message: OutgoingMessage) -> str:
        """Reply by the interaction's token: the first message fills in the pending reply, others follow it."""
        token = to.reply_token.partition(":")[2]
        if message.opens:
            sent = await self._call(
                "PATCH", "/webhooks/{app}/{hook}/messages/@original", _message_fields(message), hook=token
            )
        else:
            sent = await self._call("POST", "/webhooks/{app}/{hook}", _message_fields(message), hook=token)
        return str(sent["id"])

    async def edit_message(self, to: OutboundAddress, message_id: str, message: OutgoingMessage) -> None:
        if to.reply_token:
            token = to.reply_token.partition(":")[2]
            path = "/webhooks/{app}/{hook}/messages/{message_id}"
            await self._call("PATCH", path, _message_fields(message), hook=token, message_id=message_id)
            return
        path = "/channels/{channel_id}/messages/{message_id}"
        await self._call(
            "PATCH", path, _message_fields(message), channel_id=_get_channel_id(to), message_id=message_id
        )

    async def show_typing(self, to: OutboundAddress) -> None:
        if not to.reply_token:  # Discord shows a pending reply as typing
            await self._call("POST", "/channels/{channel_id}/typing", None, channel_id=_get_channel_id(to))

    async def send_private(self, to: OutboundAddress, user_id: str, message: OutgoingMessage) -> None:
        if to.reply_token.startswith("private:"):
            await self._reply(to, message)
            return
        if to.scope == "dm":
            await self.send_message(to, message)
            return
        if to.reply_token and not message.buttons:
            await self._send_ephemeral(to, message)
            return
        opened = await self._call("POST", "/users/@me/channels", {"recipient_id": user_id})
        await self.send_message(OutboundAddress(scope="dm", container_id=str(opened["id"])), message)
        if to.reply_token:  # the public reply must not stay pending
            await self._reply(to, OutgoingMessage(body=self.render_text(SENT_PRIVATELY_TEXT), opens=True))

    async def _send_ephemeral(self, to: OutboundAddress, message: OutgoingMessage) -> None:
        # The pending public reply is deleted first; otherwise Discord would show this message in its place to all.
        token = to.reply_token.partition(":")[2]
        await self._call("DELETE", "/webhooks/{app}/{hook}/messages/@original", None, hook=token)
        fields = _message_fields(message) | {"flags": wire.EPHEMERAL | wire.SUPPRESS_EMBEDS}
        await self._call("POST", "/webhooks/{app}/{hook}", fields, hook=token)

    async def answer_button_press(self, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
        # The webhook response has acknowledged the press already.
        if text:
            fields: dict[str, JSON] = {
                "content": neutralise_mentions(text),
                "flags": wire.EPHEMERAL | wire.SUPPRESS_EMBEDS,
                "allowed_mentions": NO_MENTIONS,
            }
            await self._call("POST", "/webhooks/{app}/{hook}", fields, hook=pressed.reply_token)

    async def send_file(self, to: OutboundAddress, name: str, content: bytes) -> str:
        form: list[dict[str, str | bytes]] = [
            {"name": "payload_json", "value": '{"allowed_mentions":{"parse":[]}}'},
            {
                "name": "files[0]",
                "value": content,
                "filename": name,
                "content_type": "application/octet-stream",
            },
        ]
        path = "/channels/{channel_id}/messages"
        sent = await self._call("POST", path, None, form=form, channel_id=_get_channel_id(to))
        return str(sent["id"])

    async def fetch_file(self, file: AttachedFile) -> bytes:
        client = await self._get_client()
        return await _translate_errors(client.get_from_cdn(file.reference))

    async def is_server_admin(self, place: PlatformPlace, user_id: str) -> bool:
        guild = await self._call("GET", "/guilds/{guild_id}", None, guild_id=place.server_id)
        if guild.get("owner_id") == user_id:
            return True
        path = "/guilds/{guild_id}/members/{user_id}"
        member = await self._call("GET", path, None, guild_id=place.server_id, user_id=user_id)
        member_roles = {*_as_strings(member.get("roles")), place.server_id}  # @everyone has the server's id
        roles = guild.get("roles")
        return any(
            int(str(role.get("permissions") or 0)) & wire.ADMIN_PERMISSIONS
            for role in (roles if isinstance(roles, list) else [])
            if isinstance(role, dict) and role.get("id") in member_roles
        )

    async def fetch_server_name(self, place: PlatformPlace) -> str:
        guild = await self._call("GET", "/guilds/{guild_id}", None, guild_id=place.server_id)
        return str(guild.get("name") or place.server_name)

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        """Register the commands, and a first one whose text goes to the assistant."""
        text_option: JSON = {
            "type": STRING_OPTION_TYPE,
            "name": "text",
            "description": "What to ask.",
            "required": True,
        }
        definitions: list[JSON] = [
            {"name": wire.ASK_COMMANDS[0], "description": ASK_DESCRIPTION, "options": [text_option]}
        ]
        definitions += [{"name": name, "description": text} for name, text in commands.items()]
        await self._call("PUT", "/applications/{app}/commands", definitions)

    async def fetch_identity(self) -> BotIdentity:
        return BotIdentity(account=parse_bot_user_id(self.token) or self.bot_account)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _get_client(self) -> HTTPClient:
        """Return the vendor's client, which keeps Discord's rate limits itself and raises if a wait is too long."""
        async with self._opening:
            if self._client is None:
                from discord.http import HTTPClient, Route

                Route.BASE = self.api_url
                client = HTTPClient(
                    asyncio.get_running_loop(), max_ratelimit_timeout=MAX_RATE_LIMIT_WAIT_SECONDS
                )
                try:
                    await _translate_errors(client.static_login(self.token))
                except PlatformError:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _call(
        self,
        method: str,
        path: str,
        fields: Mapping[str, JSON] | list[JSON] | None,
        *,
        form: list[dict[str, str | bytes]] | None = None,
        **names: str,
    ) -> dict[str, JSON]:
        from discord.http import Route

        client = await self._get_client()
        if "{app}" in path:
            names["app"] = self.bot_account
        route = Route(method, path, **names)
        call = client.request(route, form=form) if fields is None else client.request(route, json=fields)
        try:
            answer = await _translate_errors(call)
        except (asyncio.CancelledError, PlatformUnavailable):
            # A call that is abandoned during a global rate limit would leave all other calls waiting for ever.
            client._global_over.set()
            raise
        return answer if isinstance(answer, dict) else {}


def parse_bot_user_id(token: str) -> str:
    """Decode the first part of a bot token, which is the bot's user id; "" if it is not."""
    head = token.partition(".")[0]
    try:
        user_id = base64.b64decode(head + "=" * (-len(head) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return user_id if user_id.isdecimal() else ""


def _get_channel_id(to: OutboundAddress) -> str:
    return to.thread_id or to.container_id


def _as_strings(value: JSON) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _message_fields(message: OutgoingMessage) -> dict[str, JSON]:
    return {
        "content": message.body.markup,
        "allowed_mentions": NO_MENTIONS,
        # A preview would fetch any URL that a model was tricked into writing, including data encoded in it.
        "flags": wire.SUPPRESS_EMBEDS,
        "components": _button_rows(message.buttons),
    }


def _button_rows(buttons: Sequence[MessageButton]) -> list[JSON]:
    components: list[JSON] = [
        {"type": 2, "style": LINK, "label": button.label, "url": button.url}
        if button.url
        else {
            "type": 2,
            "style": DANGER if button.danger else PRIMARY,
            "label": button.label,
            "custom_id": button.code,
        }
        for button in buttons
    ]
    return [{"type": 1, "components": components[at : at + 5]} for at in range(0, len(components), 5)]


async def _translate_errors(call: Awaitable[T]) -> T:
    """Await the call and raise its errors as PlatformError. The library's own texts quote URLs and bodies."""
    import aiohttp
    from discord.errors import HTTPException, LoginFailure, RateLimited

    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            return await call
    except RateLimited as problem:
        raise PlatformBusy(problem.retry_after) from None
    except LoginFailure:
        raise CallRefused("Discord rejected the bot token") from None
    except HTTPException as problem:
        raise _to_platform_error(problem.status, problem.code) from None
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise PlatformUnavailable(f"Discord did not answer: {type(problem).__name__}") from None
    except MALFORMED_ANSWER_ERRORS as problem:
        raise PlatformUnavailable(f"malformed response from Discord: {type(problem).__name__}") from None


def _to_platform_error(status: int, code: int) -> PlatformError:
    if code in (UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, TOKEN_EXPIRED):
        return MessageGone("the message no longer exists on Discord")
    if status in (401, 403, 404):
        return ChatUnreachable("the bot may not write to this Discord channel")
    if status == 429:
        return PlatformBusy(60.0)  # a ban of our IP address, which more calls would prolong
    return (
        PlatformUnavailable(f"Discord answered {status}")
        if status >= 500
        else CallRefused("Discord refused the call")
    )
