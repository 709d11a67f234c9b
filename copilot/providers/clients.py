"""Hold one client per provider, server and credential, shared by the whole process."""

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
# Connections belong to their event loop, so clients are dropped together with it.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_ClientKey, _ClosableProvider]] = (
    WeakKeyDictionary()
)


class _ProcessState:
    streams = False  # load_sdks was called


def get_provider(entry: CatalogueEntry) -> Provider:
    """Return the provider of an entry. Call it on the loop that will stream."""
    if entry.provider == "scripted":
        return _find_scripted(entry)
    clients = _loop_clients()
    client = clients.get(_client_key(entry))
    if client is None:
        client = clients[_client_key(entry)] = _create_client(entry)
    return client


def load_sdks(entries: Iterable[CatalogueEntry]) -> None:
    """Import the SDKs these entries need, which takes seconds, before a worker's first turn."""
    _ProcessState.streams = True
    for name in {entry.provider for entry in entries} - {"scripted"}:
        import_module(f"copilot.providers.{name}")


def reload_sdks(entries: Iterable[CatalogueEntry]) -> None:
    """Import further SDKs after a change of the catalogue, but only in a process that streams."""
    if _ProcessState.streams:
        load_sdks(entries)


async def close_unused_clients(entries: Iterable[CatalogueEntry]) -> None:
    clients = _loop_clients()
    used = {_client_key(entry) for entry in entries}
    for key in clients.keys() - used:
        await clients.pop(key).aclose()


async def close_all_clients() -> None:
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
    """Create a client, importing its SDK late, because only processes that stream need it."""
    connect_seconds = catalogue.get_catalogue().connect_seconds
    match entry.provider:
        case "openai_chat":
            from copilot.providers.openai_chat import OpenAIChatProvider

            return OpenAIChatProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "openai_responses":
            from copilot.providers.openai_responses import OpenAIResponsesProvider

            return OpenAIResponsesProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "anthropic":
            from copilot.providers.anthropic import AnthropicProvider

            return AnthropicProvider(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "scripted":
            raise AssertionError("scripts have no client")
        case unreachable:
            assert_never(unreachable)
