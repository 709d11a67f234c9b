"""Discord's gateway: plain messages come by a socket that the vendor's client keeps, resumes and beats on (L22)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

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

log = logging.getLogger(__name__)

MAX_BACKOFF_EXPONENT = 5  # as a power of two: half a minute between tries to connect
MAX_QUEUED_MESSAGES = 10_000
FATAL_CLOSE_CODES = {
    4004: "Discord does not know the bot's token",
    4010: "Discord refuses the shard",
    4011: "Discord asks for shards: the bot is in too many servers for one connection",
    4012: "Discord does not speak this version of the gateway any more",
    4013: "Discord does not know the intents",
    4014: "the bot lacks the message content intent; switch it on in Discord's developer portal",
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
    def __init__(self, adapter: DiscordAdapter, *, gateway_url: str) -> None:
        self._adapter = adapter
        self._url = gateway_url
        self._bot_id = parse_bot_user_id(adapter.token) or adapter.bot_account
        self._queue: asyncio.Queue[IncomingUpdate] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._client: discord.Client | None = None

    async def prepare(self, *, replace_webhook: bool) -> None:
        log.info("without the message content intent Discord shows only direct messages and mentions")

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
            log.warning("a frame of Discord is not what its documents say; it is left out")
            return
        if incoming is not None:
            try:
                self._queue.put_nowait(incoming)
            except asyncio.QueueFull:
                log.error("the inbox is too far behind Discord: a message is lost")

    def _parse_frame(self, frame: str, client: discord.Client) -> IncomingUpdate | None:
        read = _frame_decoder.decode(frame)
        if read.t == "GUILD_DELETE":
            guild = _guild_decoder.decode(read.d)
            if guild.unavailable:
                return None  # an outage of theirs
            place = PlatformPlace(scope="server", server_id=guild.id, container_id=guild.id)
            return IncomingUpdate(
                update_key=f"left:{guild.id}:{int(time.time())}", place=place, what=BotRemoved()
            )
        if read.t != "MESSAGE_CREATE":
            return None
        message = _message_decoder.decode(read.d)
        channel = client.get_channel(int(message.channel_id))
        parent = getattr(channel, "parent_id", None)
        return parse_message(message, parent_id=str(parent) if parent else None, bot_id=self._bot_id)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


def _make_short_backoff() -> type[object]:
    """The library's own waits for up to a quarter of an hour."""
    from discord.backoff import ExponentialBackoff

    class Shorter(ExponentialBackoff):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__()
            self._max = MAX_BACKOFF_EXPONENT

    return Shorter


def _explain_closure(problem: BaseException | None) -> Exception:
    """What ended the client: for good, or for now."""
    from discord.errors import ConnectionClosed, LoginFailure, PrivilegedIntentsRequired

    match problem:
        case PrivilegedIntentsRequired():
            return PlatformMisconfigured(FATAL_CLOSE_CODES[4014])
        case LoginFailure():
            return PlatformMisconfigured(FATAL_CLOSE_CODES[4004])
        case ConnectionClosed() if problem.code in FATAL_CLOSE_CODES:
            return PlatformMisconfigured(FATAL_CLOSE_CODES[problem.code])
        case _:
            return PlatformUnavailable(f"Discord's gateway is gone: {type(problem).__name__}")
