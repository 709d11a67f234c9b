"""Providers by catalogue entry: one client per server and credential, shared by the whole process (A5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, assert_never
from weakref import WeakKeyDictionary

from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry, Provider, ProviderFailure
from copilot.providers.demo import DemoProvider


class _ClosableProvider(Provider, Protocol):
    async def aclose(self) -> None: ...


_ClientKey = tuple[str, str, str]  # provider, server, credential
# Connections belong to the loop that made them; a loop that is gone takes its clients along.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_ClientKey, _ClosableProvider]] = (
    WeakKeyDictionary()
)


class _ProcessState:
    streams = False  # it has said which SDKs it needs


def get_provider(entry: CatalogueEntry) -> Provider:
    """Call it on the loop that will stream."""
    if entry.provider == "scripted":
        return _find_scripted(entry)
    clients = _loop_clients()
    client = clients.get(_client_key(entry))
    if client is None:
        client = clients[_client_key(entry)] = _create_client(entry)
    return client


def load_sdks(entries: Iterable[CatalogueEntry]) -> None:
    """Import the SDKs these entries need: seconds that a worker spends before its first turn, not during it."""
    _ProcessState.streams = True
    for name in {entry.provider for entry in entries} - {"scripted"}:
        import_module(f"copilot.providers.{name}.provider")


def reload_sdks(entries: Iterable[CatalogueEntry]) -> None:
    """The same when the catalogue has changed, in a process that streams; others never pay for it."""
    if _ProcessState.streams:
        load_sdks(entries)


async def close_unused_clients(entries: Iterable[CatalogueEntry]) -> None:
    """After the catalogue changed: clients of credentials that no entry names any more are closed."""
    clients = _loop_clients()
    used = {_client_key(entry) for entry in entries}
    for key in clients.keys() - used:
        await clients.pop(key).aclose()


async def close_all_clients() -> None:
    """At the end of the process, on the loop that streamed."""
    await close_unused_clients(())


def _loop_clients() -> dict[_ClientKey, _ClosableProvider]:
    return _clients.setdefault(asyncio.get_running_loop(), {})


def _client_key(entry: CatalogueEntry) -> _ClientKey:
    return entry.provider, entry.base_url, entry.credential


def _find_scripted(entry: CatalogueEntry) -> Provider:
    installed = scripted.find_installed(entry.model)
    if installed is not None:
        return installed
    if entry.demo:
        return DemoProvider(catalogue.get_catalogue().demo_tokens_per_second)
    raise ProviderFailure("model_not_found", details=f"no script is installed for {entry.model!r}")


def _create_client(entry: CatalogueEntry) -> _ClosableProvider:
    """The SDKs take seconds to import, so only who streams pays for them."""
    connect_seconds = catalogue.get_catalogue().connect_seconds
    match entry.provider:
        case "openai_chat":
            from copilot.providers.openai_chat.provider import OpenAIChatProvider

            return OpenAIChatProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "openai_responses":
            from copilot.providers.openai_responses.provider import OpenAIResponsesProvider

            return OpenAIResponsesProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "anthropic":
            from copilot.providers.anthropic.provider import AnthropicProvider

            return AnthropicProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "scripted":
            raise AssertionError("scripts have no client")
        case unreachable:
            assert_never(unreachable)
