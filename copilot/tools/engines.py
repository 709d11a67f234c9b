"""Search engines by their wire: SearXNG, Brave and Tavily, each answering with titles, URLs and snippets (A24.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from copilot.tools.base import ToolFailed
from copilot.tools.entities import unescape

TOTAL_SECONDS = 15.0  # within the tool's 20
MAX_BYTES = 2 * 1024 * 1024
MAX_SNIPPET = 500
MAX_TITLE = 300
MAX_URL = 2_000
_MARKUP = re.compile(r"<[^<>]{0,200}>")
_QUOTA = frozenset({402, 429, 432, 433})  # the last two are Tavily's plan and spending limits


@dataclass(frozen=True, kw_only=True)
class Hit:
    title: str
    url: str
    snippet: str


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where to ask. The administrator chose it, so it may lie in a private network."""

    name: str
    url: str
    key: str = field(default="", repr=False)


class _Found(msgspec.Struct):
    title: str | None = ""
    url: str | None = ""
    content: str | None = ""
    description: str | None = ""


class _Plain(msgspec.Struct):
    results: list[_Found] = []


class _Brave(msgspec.Struct):
    web: _Plain = msgspec.field(default_factory=_Plain)


@dataclass(frozen=True, kw_only=True)
class _Request:
    method: str
    path: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, str | int] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Wire:
    url: str  # of the public service, where there is one
    needs_key: bool
    request: Callable[[Engine, str, int], _Request]
    read: Callable[[bytes], list[_Found]]


def _searxng(engine: Engine, query: str, count: int) -> _Request:
    headers = {"Authorization": f"Bearer {engine.key}"} if engine.key else {}
    return _Request(method="GET", path="/search", parameters={"q": query, "format": "json"}, headers=headers)


def _brave(engine: Engine, query: str, count: int) -> _Request:
    return _Request(
        method="GET",
        parameters={"q": query, "count": str(count)},
        headers={"X-Subscription-Token": engine.key},
    )


def _tavily(engine: Engine, query: str, count: int) -> _Request:
    return _Request(
        method="POST",
        body={"query": query, "max_results": count},
        headers={"Authorization": f"Bearer {engine.key}"},
    )


def _plain(body: bytes) -> list[_Found]:
    return msgspec.json.decode(body, type=_Plain).results


def _braves(body: bytes) -> list[_Found]:
    return msgspec.json.decode(body, type=_Brave).web.results


WIRES: Mapping[str, _Wire] = {
    "searxng": _Wire(url="", needs_key=False, request=_searxng, read=_plain),
    "brave": _Wire(
        url="https://api.search.brave.com/res/v1/web/search", needs_key=True, request=_brave, read=_braves
    ),
    "tavily": _Wire(url="https://api.tavily.com/search", needs_key=True, request=_tavily, read=_plain),
}


def missing(engine: Engine) -> str:
    """What the settings lack, or nothing."""
    if not engine.name:
        return "No search engine is configured (WEB_SEARCH)."
    wire = WIRES[engine.name]
    if not engine.url and not wire.url:
        return f"WEB_SEARCH_URL is empty; {engine.name} needs the address of its server."
    if wire.needs_key and not engine.key:
        return f"WEB_SEARCH_KEY is empty; {engine.name} needs a key."
    return ""


async def search(engine: Engine, query: str, count: int) -> list[Hit]:
    wire = WIRES[engine.name]
    body = await _asked(engine.url or wire.url, wire.request(engine, query, count))
    try:
        found = wire.read(body)
    except msgspec.MsgspecError as problem:
        raise ToolFailed("search_unavailable", "The search engine's answer could not be read.") from problem
    hits = (_hit(one) for one in found)
    return [hit for hit in hits if hit.url.startswith(("http://", "https://"))][:count]


async def _asked(url: str, request: _Request) -> bytes:
    timeout = aiohttp.ClientTimeout(total=TOTAL_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            session.request(
                request.method,
                url.rstrip("/") + request.path,
                params=request.parameters,
                json=request.body,
                headers={"Accept": "application/json", **request.headers},
                allow_redirects=False,  # a key goes where it was meant to go
            ) as response,
        ):
            _judge(response.status)
            return await _limited(response)
    except TimeoutError as problem:
        raise ToolFailed("search_unavailable", "The search engine did not answer in time.") from problem
    except (aiohttp.ClientError, OSError) as problem:
        raise ToolFailed("search_unavailable", "The search engine could not be reached.") from problem


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_BYTES:
            raise ToolFailed("search_unavailable", "The search engine's answer is too long.")
    return bytes(body)


def _judge(status: int) -> None:
    if status in _QUOTA:
        raise ToolFailed("search_quota", "The search engine's quota is used up for now. Go on without it.")
    if status in {401, 403}:
        raise ToolFailed("search_refused", "The search engine refused this server; its key may be wrong.")
    if status != 200:
        raise ToolFailed("search_unavailable", f"The search engine answered with status {status}.")


def _hit(found: _Found) -> Hit:
    snippet = _text(found.content or found.description)
    return Hit(
        title=_text(found.title)[:MAX_TITLE],
        url=(found.url or "")[:MAX_URL],
        snippet=snippet if len(snippet) <= MAX_SNIPPET else snippet[: MAX_SNIPPET - 1] + "…",
    )


def _text(raw: str | None) -> str:
    """Engines mark the words they found; a model needs no markup."""
    return " ".join(unescape(_MARKUP.sub("", raw or "")).split())
