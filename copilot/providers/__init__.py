"""Providers by catalogue entry: one client per server and credential, shared by the whole process (A5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, assert_never
from weakref import WeakKeyDictionary

from copilot.providers import catalogue, scripted
from copilot.providers.base import Entry, Provider, ProviderFailure
from copilot.providers.demo import DemoProvider


class _Client(Provider, Protocol):
    async def aclose(self) -> None: ...


_Key = tuple[str, str, str]  # provider, server, credential
# Connections belong to the loop that made them; a loop that is gone takes its clients along.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Client]] = WeakKeyDictionary()


class _Process:
    streams = False  # it has said which SDKs it needs


def provider_for(entry: Entry) -> Provider:
    """Call it on the loop that will stream."""
    if entry.provider == "scripted":
        return _scripted(entry)
    clients = _of_this_loop()
    client = clients.get(_key(entry))
    if client is None:
        client = clients[_key(entry)] = _made(entry)
    return client


def load(entries: Iterable[Entry]) -> None:
    """Import the SDKs these entries need: seconds that a worker spends before its first turn, not during it."""
    _Process.streams = True
    for name in {entry.provider for entry in entries} - {"scripted"}:
        import_module(f"copilot.providers.{name}")


def keep_loaded(entries: Iterable[Entry]) -> None:
    """The same when the catalogue has changed, in a process that streams; others never pay for it."""
    if _Process.streams:
        load(entries)


async def close_unused(entries: Iterable[Entry]) -> None:
    """After the catalogue changed: clients of credentials that no entry names any more are closed."""
    clients = _of_this_loop()
    used = {_key(entry) for entry in entries}
    for key in clients.keys() - used:
        await clients.pop(key).aclose()


async def aclose_all() -> None:
    """At the end of the process, on the loop that streamed."""
    await close_unused(())


def _of_this_loop() -> dict[_Key, _Client]:
    return _clients.setdefault(asyncio.get_running_loop(), {})


def _key(entry: Entry) -> _Key:
    return entry.provider, entry.base_url, entry.credential


def _scripted(entry: Entry) -> Provider:
    installed = scripted.installed(entry.model)
    if installed is not None:
        return installed
    if entry.demo:
        return DemoProvider(catalogue.current().demo_tokens_per_second)
    raise ProviderFailure("model_not_found", details=f"no script is installed for {entry.model!r}")


def _made(entry: Entry) -> _Client:
    """The SDKs take seconds to import, so only who streams pays for them."""
    connect_seconds = catalogue.current().connect_seconds
    match entry.provider:
        case "openai_chat":
            from copilot.providers.openai_chat import OpenAIChat

            return OpenAIChat(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "openai_responses":
            from copilot.providers.openai_responses import OpenAIResponses

            return OpenAIResponses(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "anthropic":
            from copilot.providers.anthropic import Anthropic

            return Anthropic(
                credential=entry.credential, base_url=entry.base_url, connect_seconds=connect_seconds
            )
        case "scripted":
            raise AssertionError("scripts have no client")
        case unreachable:
            assert_never(unreachable)
