"""Receive plain messages from Discord's gateway through the vendor's WebSocket client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from linking.platforms.base import (
    BotRemoved,
    IncomingUpdate,
    PlatformMisconfigured,
    PlatformPlace,
    PlatformUnavailable,
    UpdateFetcher,
)
from linking.platforms.discord.adapter import DiscordAdapter, parse_bot_user_id
from linking.platforms.discord.wire import GatewayMessage, parse_message

if TYPE_CHECKING:
    import discord

log = structlog.get_logger(__name__)

MAX_BACKOFF_EXPONENT = 5  # 2**5: half a minute between attempts to connect
MAX_QUEUED_MESSAGES = 10_000
FATAL_CLOSE_CODES = {
    4004: "Discord rejected the bot token. Check DISCORD_BOT_TOKEN.",
    4010: "Discord rejected the shard.",
    4011: "Discord requires sharding: the bot is in too many servers for one connection.",
    4012: "Discord no longer supports this version of the gateway.",
    4013: "Discord rejected the intents.",
    4014: "The bot lacks the message content intent. Enable it in Discord's developer portal.",
}


class _GatewayFrame(msgspec.Struct):
    t: str | None = None
    d: msgspec.Raw = msgspec.Raw(b"null")


class _Guild(msgspec.Struct):
    id: str
    unavailable: bool = False


_frame_decoder = msgspec.json.Decoder(_GatewayFrame)
_message_decoder = msgspec.json.Decoder(GatewayMessage)
_guild_decoder = msgspec.json.Decoder(_Guild)


class DiscordGateway(UpdateFetcher):
    def __init__(self, adapter: DiscordAdapter, *, gateway_url: str = "") -> None:
        self._adapter = adapter
        self._url = gateway_url
        self._bot_id = parse_bot_user_id(adapter.token) or adapter.bot_account
        self._queue: asyncio.Queue[IncomingUpdate] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._client: discord.Client | None = None

    async def prepare(self, *, replace_webhook: bool) -> None:
        # Without the message content intent, Discord shows the text of direct messages and mentions only.
        log.info("gateway_intents_requested", message_content=True)

    async def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        self._client = client = self._create_client()
        running = asyncio.create_task(client.start(self._adapter.token))
        try:
            while True:
                waiting = asyncio.create_task(self._queue.get())
                done, _ = await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
                if waiting not in done:
                    waiting.cancel()
                    raise _explain_closure(running.exception())
                yield [waiting.result()]
        finally:
            running.cancel()
            await client.close()
            await asyncio.gather(running, return_exceptions=True)

    def _create_client(self) -> discord.Client:
        import discord
        import discord.client
        import yarl
        from discord.gateway import DiscordWebSocket
        from discord.http import Route

        Route.BASE = self._adapter.api_url
        if self._url:
            DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(self._url)
        setattr(discord.client, "ExponentialBackoff", _make_short_backoff())  # noqa: B010 - the library gives no other way
        intents = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
        client = discord.Client(
            intents=intents, enable_debug_events=True, max_messages=None, chunk_guilds_at_startup=False
        )

        async def on_socket_raw_receive(frame: str) -> None:
            self._receive_frame(frame, client)

        client.event(on_socket_raw_receive)
        return client

    def _receive_frame(self, frame: str, client: discord.Client) -> None:
        try:
            incoming = self._parse_frame(frame, client)
        except msgspec.MsgspecError:
            log.warning("update_malformed", platform=DiscordAdapter.platform)
            return
        if incoming is not None:
            try:
                self._queue.put_nowait(incoming)
            except asyncio.QueueFull:
                log.error("update_queue_full", platform=DiscordAdapter.platform)

    def _parse_frame(self, frame: str, client: discord.Client) -> IncomingUpdate | None:
        parsed = _frame_decoder.decode(frame)
        if parsed.t == "GUILD_DELETE":
            guild = _guild_decoder.decode(parsed.d)
            if guild.unavailable:
                return None  # an outage of Discord, not a removal
            place = PlatformPlace(scope="server", server_id=guild.id, container_id=guild.id)
            return IncomingUpdate(
                update_key=f"left:{guild.id}:{int(time.time())}", place=place, what=BotRemoved()
            )
        if parsed.t != "MESSAGE_CREATE":
            return None
        message = _message_decoder.decode(parsed.d)
        channel = client.get_channel(int(message.channel_id))
        parent = getattr(channel, "parent_id", None)
        return parse_message(message, parent_id=str(parent) if parent else None, bot_id=self._bot_id)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


def _make_short_backoff() -> type[object]:
    """Return a backoff with shorter waits; the library's own go up to a quarter of an hour."""
    from discord.backoff import ExponentialBackoff

    class ShortBackoff(ExponentialBackoff):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__()
            self._max = MAX_BACKOFF_EXPONENT

    return ShortBackoff


def _explain_closure(problem: BaseException | None) -> Exception:
    """Translate what ended the client into an error that is permanent or temporary."""
    from discord.errors import ConnectionClosed, LoginFailure, PrivilegedIntentsRequired

    match problem:
        case PrivilegedIntentsRequired():
            return PlatformMisconfigured(FATAL_CLOSE_CODES[4014])
        case LoginFailure():
            return PlatformMisconfigured(FATAL_CLOSE_CODES[4004])
        case ConnectionClosed() if problem.code in FATAL_CLOSE_CODES:
            return PlatformMisconfigured(FATAL_CLOSE_CODES[problem.code])
        case _:
            return PlatformUnavailable(f"Discord's gateway closed: {type(problem).__name__}")
