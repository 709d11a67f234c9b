"""Receive Slack's events, commands and button presses in Socket Mode through the vendor's WebSocket client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from linking.platforms.base import CallRefused, IncomingUpdate, PlatformMisconfigured, UpdateFetcher
from linking.platforms.slack import wire
from linking.platforms.slack.adapter import SlackAdapter, translate_errors

if TYPE_CHECKING:
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest

log = structlog.get_logger(__name__)


class SlackSocketMode(UpdateFetcher):
    """Socket Mode. Requests are acknowledged once they are stored; Slack sends the others again."""

    def __init__(self, adapter: SlackAdapter, *, app_token: str) -> None:
        self._adapter = adapter
        self._token = app_token
        self._client: SocketModeClient | None = None

    async def prepare(self, *, replace_webhook: bool) -> None:
        if not self._token:
            raise PlatformMisconfigured(
                "SLACK_APP_TOKEN is missing. Socket Mode needs an app-level token (xapp-…)."
            )
        try:
            await translate_errors(self._adapter.get_client().apps_connections_open(app_token=self._token))
        except CallRefused:
            raise PlatformMisconfigured(
                "Slack rejected SLACK_APP_TOKEN. Check the token, and that Socket Mode is enabled for the app."
            ) from None

    async def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        from slack_sdk.socket_mode.aiohttp import SocketModeClient
        from slack_sdk.socket_mode.response import SocketModeResponse

        requests: asyncio.Queue[SocketModeRequest] = asyncio.Queue()

        async def listen(_: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
            requests.put_nowait(request)

        self._client = client = SocketModeClient(app_token=self._token, web_client=self._adapter.get_client())
        client.socket_mode_request_listeners.append(listen)
        try:
            await client.connect()  # type: ignore[no-untyped-call]
            while True:
                request = await requests.get()
                if (incoming := _parse_request(request)) is not None:
                    yield [incoming]
                with suppress(ConnectionError):  # Slack sends it again, and it is dropped as a duplicate
                    await client.send_socket_mode_response(
                        SocketModeResponse(envelope_id=request.envelope_id)
                    )
        finally:
            await client.close()  # type: ignore[no-untyped-call]

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()  # type: ignore[no-untyped-call]


def _parse_request(request: SocketModeRequest) -> IncomingUpdate | None:
    try:
        match request.type:
            case "events_api":
                return wire.parse_envelope(msgspec.convert(request.payload, wire.EventEnvelope)).incoming
            case "interactive":
                return wire.parse_interaction(msgspec.convert(request.payload, wire.BlockInteraction))
            case "slash_commands":
                return wire.parse_slash_command(
                    msgspec.convert(request.payload, dict[str, str], strict=False)
                )
            case _:
                return None
    except (msgspec.ValidationError, KeyError):
        log.warning("update_malformed", platform=SlackAdapter.platform)
        return None
