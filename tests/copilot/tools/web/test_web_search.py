"""The tool that searches, against engines of our own (A24.3)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from billing import policies
from billing.models import UsageRecord
from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.providers.base import ToolCall
from copilot.tools import execution, registry
from copilot.tools.base import ToolCallOutcome
from tests.support.local_web_server import serve_locally
from tests.support.tool_calls import make_context

pytestmark = pytest.mark.django_db(transaction=True)
HIT: dict[str, JSON] = {
    "title": "<b>A</b> &amp; B",
    "url": "https://a.example/",
    "content": "see <strong>this</strong>\n " + "x" * 600,
}
ANSWERS: dict[str, JSON] = {
    "searxng": {"results": [HIT, {"url": "javascript:alert(1)"}, {"title": None, "url": "http://b.example"}]},
    "brave": {
        "web": {"results": [{**HIT, "content": None, "description": HIT["content"]}]},
        "type": "search",
    },
    "tavily": {"results": [HIT] * 12, "answer": None},
}


@pytest.fixture(autouse=True)
def _prices_of_this_test_alone() -> Any:
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


async def use(context: TurnContext, **arguments: JSON) -> ToolCallOutcome:
    call = ToolCall(call_id="c", tool="web_search", arguments=arguments)
    async with aclosing(execution.run_tool_calls([call], context=context, emit=lambda event: None)) as group:
        return await anext(group)


def answering(
    body: JSON, seen: list[web.Request], status: int = 200
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        return web.Response(text=body if isinstance(body, str) else json.dumps(body), status=status)

    return answer


def configure(settings: Any, engine: str, port: int) -> None:
    settings.WEB_SEARCH, settings.WEB_SEARCH_KEY = engine, "key-of-the-engine"
    settings.WEB_SEARCH_URL = f"http://127.0.0.1:{port}/"


@pytest.mark.parametrize(("engine", "hits"), [("searxng", 2), ("brave", 1), ("tavily", 5)])
async def test_each_engine_answers_with_titles_urls_and_short_snippets(
    settings: Any, engine: str, hits: int
) -> None:
    """A24.3"""
    seen: list[web.Request] = []
    async with serve_locally(answering(ANSWERS[engine], seen)) as port:
        configure(settings, engine, port)
        outcome = await use(await run_in_thread(make_context), query=" what is a & b ")
    results = json.loads(outcome.content)["results"]
    assert len(results) == hits
    assert (results[0]["title"], results[0]["url"]) == ("A & B", "https://a.example/")
    assert results[0]["snippet"].startswith("see this xxx")
    assert len(results[0]["snippet"]) == 500
    assert "key-of-the-engine" in str(dict(seen[0].headers))
    asked = seen[0].query.get("q") or json.loads(await seen[0].read())["query"]
    assert asked == "what is a & b"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (429, "", "search_quota"),
        (432, "", "search_quota"),
        (401, "", "search_refused"),
        (500, "", "search_unavailable"),
        (302, "", "search_unavailable"),
        (200, "<html>", "search_unavailable"),
        (200, '{"results": 3}', "search_unavailable"),
        (200, " " * 3_000_000, "search_unavailable"),
    ],
)
async def test_errors_and_quotas_are_clear_results(settings: Any, status: int, body: str, code: str) -> None:
    """A24.3"""
    async with serve_locally(answering(body, [], status)) as port:
        configure(settings, "searxng", port)
        outcome = await use(await run_in_thread(make_context), query="x")
    assert (outcome.success, outcome.content.split(":")[0]) == (False, f"Error {code}")


async def test_an_engine_that_is_away_is_an_error_result(settings: Any) -> None:
    """A24.3"""
    async with serve_locally(answering("", [])) as port:
        configure(settings, "searxng", port)
    assert "Error search_unavailable" in (await use(await run_in_thread(make_context), query="x")).content


async def test_a_priced_search_is_usage_once_for_each_call(settings: Any) -> None:
    """A24.3, B5: not credits; a repeated call is counted once"""
    settings.WEB_SEARCH_PRICE_MICRODOLLARS = 5_000
    context = await run_in_thread(make_context)
    async with serve_locally(answering(ANSWERS["searxng"], [])) as port:
        configure(settings, "searxng", port)
        for _ in range(2):
            assert (await use(context, query="x")).success
    record = await run_in_thread(UsageRecord.objects.get)
    assert (record.cost_microdollars, record.purpose, record.provider) == (5_000, "tool", "searxng")
    assert record.turn_ref == context.turn_id


@pytest.mark.parametrize("arguments", [{"query": ""}, {"query": "x" * 401}, {"query": "x", "count": 11}])
async def test_arguments_outside_the_rules_are_refused(settings: Any, arguments: dict[str, JSON]) -> None:
    """A24.3"""
    configure(settings, "searxng", 9)
    assert "Error search" not in (await use(await run_in_thread(make_context), **arguments)).content


@pytest.mark.parametrize(
    ("engine", "url", "key", "reason"),
    [
        ("", "", "", "No search engine is configured"),
        ("searxng", "", "", "WEB_SEARCH_URL is empty"),
        ("brave", "", "", "WEB_SEARCH_KEY is empty"),
        ("tavily", "", "", "WEB_SEARCH_KEY is empty"),
        ("tavily", "", "key", ""),
        ("searxng", "http://searxng:8080", "", ""),
    ],
)
def test_without_an_engine_the_tool_is_absent_with_a_reason(
    settings: Any, engine: str, url: str, key: str, reason: str
) -> None:
    """A24.3, A32.c1"""
    settings.WEB_SEARCH, settings.WEB_SEARCH_URL, settings.WEB_SEARCH_KEY = engine, url, key
    offered = {tool.name for tool in registry.list_offered_tools(UNRESTRICTED, CHANNELS_BY_ORIGIN["web"])}
    assert ("web_search" in offered) is (not reason)
    assert registry.list_unavailable_tools().get("web_search", "").startswith(reason)
