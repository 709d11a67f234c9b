"""Discord: a door for interactions, its REST API for messages; plain chat comes by the gateway (L22)."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from linking.platforms import discord_wire
from linking.platforms.base import (
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
    Scope,
    SentFile,
    Unreachable,
    is_fresh,
)
from linking.platforms.markup import neutralise

if TYPE_CHECKING:
    from discord.http import HTTPClient

LONGEST_WAIT_SECONDS = 30.0  # the least that its client allows
CALL_SECONDS = 50.0
PRIMARY, DANGER, LINK = 1, 4, 5  # styles of buttons
STRING = 3  # what a command's option holds
UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, TOKEN_EXPIRED = 10008, 10015, 10062, 50027
T = TypeVar("T")

LOOK_THERE = "I have written to you privately."
ASK = "Ask the agent."
NOBODY: dict[str, JSON] = {"parse": []}


class Discord(Adapter):
    platform: ClassVar[str] = "discord"
    text_limit: ClassVar[int] = 2000
    length_unit: ClassVar[LengthUnit] = "codepoint"
    chunk_target: ClassVar[int] = 1900
    min_edit_interval: ClassVar[dict[Scope, float]] = {"dm": 1.3, "server": 1.3}
    door_types: ClassVar[tuple[str, ...]] = (JSON_TYPE,)
    typing_ttl: ClassVar[float] = 10.0
    ack_deadline: ClassVar[float] = 3.0
    max_buttons: ClassVar[int] = 25
    button_payload_bytes: ClassVar[int] = 100
    button_label_characters: ClassVar[int] = 80
    file_bytes: ClassVar[int] = 10 * 2**20
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

    # --- the door ---

    def verify(self, knock: Knock) -> None:
        stamp = knock.headers.get("x-signature-timestamp", "")
        try:
            signature = bytes.fromhex(knock.headers.get("x-signature-ed25519", ""))
            if self._key is None or not is_fresh(stamp):
                raise Forged
            self._key.verify(signature, stamp.encode() + knock.body)
        except (ValueError, InvalidSignature):
            raise Forged from None

    def hear(self, knock: Knock) -> Heard:
        return discord_wire.read(knock.body)

    # --- calls ---

    def render(self, text: str) -> Rendered:
        """Discord reads Markdown itself; what would call people is broken, besides `allowed_mentions`."""
        safe = neutralise(text)
        return Rendered(markup=safe, plain=safe)

    def measure(self, body: Rendered) -> int:
        return len(body.markup)

    async def send(self, to: Address, message: Outgoing) -> str:
        if to.reply_token:
            return await self._reply(to, message)
        fields = _fields(message)
        if message.nonce:
            fields |= {"nonce": message.nonce[:25], "enforce_nonce": True}
        if to.anchor:
            fields["message_reference"] = {"message_id": to.anchor, "fail_if_not_exists": False}
        sent = await self._call("POST", "/channels/{channel_id}/messages", fields, channel_id=_channel(to))
        return str(sent["id"])

    async def _reply(self, to: Address, message: Outgoing) -> str:
        """By the interaction's token: first what was promised is filled in, then further messages follow."""
        token = to.reply_token.partition(":")[2]
        if message.opens:
            sent = await self._call(
                "PATCH", "/webhooks/{app}/{hook}/messages/@original", _fields(message), hook=token
            )
        else:
            sent = await self._call("POST", "/webhooks/{app}/{hook}", _fields(message), hook=token)
        return str(sent["id"])

    async def edit(self, to: Address, message_id: str, message: Outgoing) -> None:
        if to.reply_token:
            token = to.reply_token.partition(":")[2]
            path = "/webhooks/{app}/{hook}/messages/{message_id}"
            await self._call("PATCH", path, _fields(message), hook=token, message_id=message_id)
            return
        path = "/channels/{channel_id}/messages/{message_id}"
        await self._call("PATCH", path, _fields(message), channel_id=_channel(to), message_id=message_id)

    async def show_typing(self, to: Address) -> None:
        if not to.reply_token:  # a reply that was put off shows it by itself
            await self._call("POST", "/channels/{channel_id}/typing", None, channel_id=_channel(to))

    async def whisper(self, to: Address, user_id: str, message: Outgoing) -> None:
        if to.reply_token.startswith("private:"):
            await self._reply(to, message)
            return
        if to.scope == "dm":
            await self.send(to, message)
            return
        if to.reply_token and not message.buttons:
            await self._aside(to, message)
            return
        opened = await self._call("POST", "/users/@me/channels", {"recipient_id": user_id})
        await self.send(Address(scope="dm", container_id=str(opened["id"])), message)
        if to.reply_token:  # what was promised in public must not stay open
            await self._reply(to, Outgoing(body=self.render(LOOK_THERE), opens=True))

    async def _aside(self, to: Address, message: Outgoing) -> None:
        """What was promised in public is taken back: until then Discord would show this instead, to everybody."""
        token = to.reply_token.partition(":")[2]
        await self._call("DELETE", "/webhooks/{app}/{hook}/messages/@original", None, hook=token)
        fields = _fields(message) | {"flags": discord_wire.EPHEMERAL | discord_wire.SUPPRESS_EMBEDS}
        await self._call("POST", "/webhooks/{app}/{hook}", fields, hook=token)

    async def answer_press(self, to: Address, pressed: Pressed, text: str) -> None:
        """The door has put the press off already; words go to the presser alone."""
        if text:
            fields: dict[str, JSON] = {
                "content": neutralise(text),
                "flags": discord_wire.EPHEMERAL | discord_wire.SUPPRESS_EMBEDS,
                "allowed_mentions": NOBODY,
            }
            await self._call("POST", "/webhooks/{app}/{hook}", fields, hook=pressed.reply_token)

    async def send_file(self, to: Address, name: str, content: bytes) -> str:
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
        sent = await self._call("POST", path, None, form=form, channel_id=_channel(to))
        return str(sent["id"])

    async def fetch_file(self, file: SentFile) -> bytes:
        client = await self._open()
        return await _told(client.get_from_cdn(file.reference))

    async def is_admin(self, place: Place, user_id: str) -> bool:
        guild = await self._call("GET", "/guilds/{guild_id}", None, guild_id=place.server_id)
        if guild.get("owner_id") == user_id:
            return True
        path = "/guilds/{guild_id}/members/{user_id}"
        member = await self._call("GET", path, None, guild_id=place.server_id, user_id=user_id)
        held = {*_strings(member.get("roles")), place.server_id}  # the server's own id is everybody's role
        roles = guild.get("roles")
        return any(
            int(str(role.get("permissions") or 0)) & discord_wire.MAY_LINK
            for role in (roles if isinstance(roles, list) else [])
            if isinstance(role, dict) and role.get("id") in held
        )

    async def server_name(self, place: Place) -> str:
        guild = await self._call("GET", "/guilds/{guild_id}", None, guild_id=place.server_id)
        return str(guild.get("name") or place.server_name)

    async def publish_commands(self, commands: Mapping[str, str]) -> None:
        """Without them nobody can give any; the first of all takes words for the agent."""
        words: JSON = {"type": STRING, "name": "text", "description": "What to ask.", "required": True}
        listed: list[JSON] = [{"name": discord_wire.ASKING[0], "description": ASK, "options": [words]}]
        listed += [{"name": name, "description": does} for name, does in commands.items()]
        await self._call("PUT", "/applications/{app}/commands", listed)

    async def identify(self) -> Identity:
        """The first part of a bot's token is its user id."""
        return Identity(account=user_id_in(self.token) or self.bot_account)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _open(self) -> HTTPClient:
        """The vendor's client keeps the buckets that the answers' headers name: it waits a while by itself, then tells."""
        async with self._opening:
            if self._client is None:
                from discord.http import HTTPClient, Route

                Route.BASE = self.api_url
                client = HTTPClient(asyncio.get_running_loop(), max_ratelimit_timeout=LONGEST_WAIT_SECONDS)
                try:
                    await _told(client.static_login(self.token))
                except PlatformProblem:
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

        client = await self._open()
        if "{app}" in path:
            names["app"] = self.bot_account
        route = Route(method, path, **names)
        asked = client.request(route, form=form) if fields is None else client.request(route, json=fields)
        try:
            found = await _told(asked)
        except (asyncio.CancelledError, Away):
            client._global_over.set()  # left while it kept all others waiting, it would never let them go on
            raise
        return found if isinstance(found, dict) else {}


def user_id_in(token: str) -> str:
    head = token.partition(".")[0]
    try:
        found = base64.b64decode(head + "=" * (-len(head) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return found if found.isdecimal() else ""


def _channel(to: Address) -> str:
    return to.thread_id or to.container_id


def _strings(value: JSON) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _fields(message: Outgoing) -> dict[str, JSON]:
    return {
        "content": message.body.markup,
        "allowed_mentions": NOBODY,
        # A preview would fetch whatever address a model was talked into writing, with all that stands in it.
        "flags": discord_wire.SUPPRESS_EMBEDS,
        "components": _rows(message.buttons),
    }


def _rows(buttons: Sequence[Button]) -> list[JSON]:
    made: list[JSON] = [
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
    return [{"type": 1, "components": made[at : at + 5]} for at in range(0, len(made), 5)]


async def _told(call: Awaitable[T]) -> T:
    """The call's answer, or its failure in our words: the library's quote addresses and bodies."""
    import aiohttp
    from discord.errors import HTTPException, LoginFailure, RateLimited

    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await call
    except RateLimited as problem:
        raise Busy(problem.retry_after) from None
    except LoginFailure:
        raise CallRefused("Discord does not know the bot's token") from None
    except HTTPException as problem:
        raise _refusal(problem.status, problem.code) from None
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise Away(f"Discord did not answer: {type(problem).__name__}") from None
    except NONSENSE as problem:
        raise Away(f"Discord answered nonsense: {type(problem).__name__}") from None


def _refusal(status: int, code: int) -> PlatformProblem:
    if code in (UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, TOKEN_EXPIRED):
        return MessageGone("Discord has no such message any more")
    if status in (401, 403, 404):
        return Unreachable("Discord lets the bot say nothing there")
    if status == 429:
        return Busy(60.0)  # without a body: a ban of the address, which calls would only prolong
    return Away(f"Discord answered {status}") if status >= 500 else CallRefused("Discord refused a call")
