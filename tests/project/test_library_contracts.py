"""The private and undocumented parts of libraries that we rely on still have the shape that we rely on.

Each contract names our module that breaks when the ground moves. The last test finds private parts without a contract.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import aiohttp
import anthropic
import discord.http
import openai
import pytest
import redis.asyncio
import uvicorn
from aiohttp.base_protocol import BaseProtocol
from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from channels.consumer import AsyncConsumer
from django.contrib.admin import site
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.staticfiles.storage import HashedFilesMixin
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy
from django.utils.translation.trans_real import DjangoTranslation
from drf_spectacular.openapi import AutoSchema
from kombu import Connection
from kombu.transport import redis as redis_transport
from kombu.transport import virtual
from rest_framework.request import Request
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from copilot.providers.http_stream import _find_raw_reader

ROOT = Path(__file__).resolve().parents[2]


def has(owner, *names, for_module):
    missing = [name for name in names if not hasattr(owner, name)]
    assert not missing, f"{for_module} relies on {', '.join(missing)} of {owner!r}, which is gone."


# --- Python ---


class RecordingQueue:
    def __init__(self) -> None:
        self.real: SimpleQueue[object] = SimpleQueue()
        self.calls: set[str] = set()

    def __getattr__(self, name):
        self.calls.add(name)
        return getattr(self.real, name)


def test_thread_pools_take_their_work_from_the_queue_that_we_replace():
    pool = ThreadPoolExecutor(1)
    has(pool, "_work_queue", for_module="config.core.db.LifoThreadPool")
    queue = RecordingQueue()
    setattr(pool, "_work_queue", queue)  # noqa: B010 - its type is another
    assert pool.submit(threading.get_ident).result(5) != threading.get_ident()
    pool.shutdown()
    assert {"put", "get"} <= queue.calls, (
        "config.core.db.LifoThreadPool relies on put and get of _work_queue."
    )
    assert queue.calls <= {"put", "get", "get_nowait", "qsize", "empty"}, (
        f"config.core.db._LifoWorkQueue has to implement what thread pools call by now: {sorted(queue.calls)}."
    )


# --- Django, Django REST framework and asgiref ---


def test_djangos_handlers_keep_their_chain_of_middleware_where_we_shorten_it():
    module = "config.http.handler._WebhookSyncHandler"
    has(BaseHandler, "_get_response", "_view_middleware", "_middleware_chain", for_module=module)
    handler = BaseHandler()
    handler.load_middleware()
    assert callable(handler._middleware_chain), f"{module} replaces _middleware_chain."
    assert isinstance(handler._view_middleware, list), f"{module} empties _view_middleware."
    assert "self._middleware_chain(request)" in inspect.getsource(BaseHandler.get_response), module
    for name in ("create_request", "get_response_async"):
        assert callable(getattr(ASGIHandler, name, None)), (
            f"config.http.handler.SingleHopASGIHandler overrides {name}."
        )
    assert "get_response_async" in inspect.getsource(ASGIHandler), (
        "config.http.handler.SingleHopASGIHandler relies on ASGIHandler calling get_response_async."
    )
    assert "request.resolver_match" in inspect.getsource(BaseHandler.resolve_request), (
        "config.http.handler._SyncHandler overrides resolve_request."
    )


def test_asgiref_finds_a_requests_threads_where_we_put_them():
    module = "config.http.handler._RequestThreadContext"
    has(SyncToAsync, "thread_sensitive_context", "context_to_thread_executor", for_module=module)
    assert "token" in vars(ThreadSensitiveContext()), f"{module} keeps its token in `token`."
    assert "context_to_thread_executor" in inspect.getsource(SyncToAsync.__call__), module


def test_responses_close_what_we_add_to_their_closers():
    closed = []
    response = HttpResponse()
    has(response, "_resource_closers", for_module="copilot.realtime.connections.OpenConnection")
    response._resource_closers.append(lambda: closed.append(True))
    response.close()
    assert closed, "copilot.realtime.connections.OpenConnection relies on close() calling _resource_closers."


@pytest.mark.django_db
def test_requests_remember_the_user_who_was_read():
    request = RequestFactory().get("/")
    request.session = SessionStore()
    AuthenticationMiddleware(lambda request: HttpResponse())(request)
    assert not hasattr(request, "_cached_user"), (
        "config.middleware takes _cached_user for a user read already."
    )
    assert request.user.is_anonymous
    has(request, "_cached_user", for_module="config.middleware and copilot.accounts.devices")


def test_rest_requests_hold_djangos_request():
    request = RequestFactory().get("/")
    rest_request = Request(request)
    has(rest_request, "_request", for_module="config.core.api.parsing")
    assert rest_request._request is request, "config.core.api.parsing reads the raw body of _request."


def test_translations_admin_sites_and_caches_have_the_parts_we_read():
    has(DjangoTranslation("en", domain="djangojs"), "_catalog", for_module="copilot.web.i18n")
    assert dict(DjangoTranslation("en", domain="djangojs")._catalog.items()) is not None
    has(site, "_registry", for_module="config.core.staff_permissions")
    cache = RedisCache("redis://localhost", {})
    has(cache, "_cache", for_module="config.core.cache.SharedCache")
    assert isinstance(cache._cache, RedisCacheClient), "config.core.cache.SharedCache shares _cache."
    assert isinstance(gettext_lazy("Anything"), Promise), "billing.errors passes lazy texts on."


@pytest.mark.django_db
def test_a_queryset_deletes_by_one_statement_without_collecting(django_assert_num_queries):
    has(QuerySet, "_raw_delete", for_module="diagnostics.audit.purge_expired_events")
    rows = User.objects.filter(username="nobody")
    with transaction.atomic(), django_assert_num_queries(1):
        assert rows._raw_delete(rows.db) == 0, "diagnostics.audit returns what _raw_delete counts."


def test_static_file_patterns_are_a_glob_and_its_replacements():
    has(HashedFilesMixin, "_js_module_import_aggregation_patterns", for_module="config.http.handler")
    glob, patterns = HashedFilesMixin._js_module_import_aggregation_patterns
    assert glob == "*.js", "config.http.handler replaces the glob."
    assert patterns, "config.http.handler reuses the patterns."


def test_the_schema_generator_asks_for_responses_where_we_add_refusals():
    module = "config.core.api.schema"
    has(AutoSchema, "_get_response_bodies", "_get_response_for_code", for_module=module)
    assert list(inspect.signature(AutoSchema._get_response_bodies).parameters) == ["self", "direction"], (
        module
    )
    parameters = list(inspect.signature(AutoSchema._get_response_for_code).parameters)
    assert parameters[:4] == ["self", "serializer", "status_code", "media_types"], module


def test_consumers_of_channels_are_called_with_scope_and_send():
    assert list(inspect.signature(AsyncConsumer.__call__).parameters) == [
        "self",
        "scope",
        "receive",
        "send",
    ], "copilot.realtime.consumer.ChatConsumer overrides __call__."


# --- uvicorn ---


@pytest.fixture(name="make_protocol")
def make_protocol_fixture():
    config = uvicorn.Config(app=lambda *_: None, lifespan="off")
    config.load()
    with asyncio.Runner() as runner:
        yield lambda protocol: protocol(
            config=config, server_state=ServerState(), app_state={}, _loop=runner.get_loop()
        )


def test_uvicorns_http_protocol_has_what_the_bounds_look_at(make_protocol):
    module = "config.http.web_server.BoundedHttpProtocol"
    protocol = make_protocol(HttpToolsProtocol)
    protocol.headers = []  # uvicorn sets it with each request
    has(protocol, "loop", "headers", "pipeline", "cycle", "transport", "client", for_module=module)
    has(
        protocol,
        *("connection_made", "data_received", "on_message_begin", "on_header", "on_headers_complete"),
        *("on_body", "on_response_complete", "send_400_response"),
        for_module=module,
    )
    assert "self.headers = " in inspect.getsource(HttpToolsProtocol.on_message_begin), module
    assert STATUS_LINE[431].startswith(b"HTTP/1.1 431"), module
    from uvicorn._types import ASGISendEvent  # named in the signature of BoundedWebSocketProtocol.send

    assert ASGISendEvent is not None


def test_uvicorns_websocket_protocol_has_what_the_bounds_look_at(make_protocol):
    module = "config.http.web_server.BoundedWebSocketProtocol"
    protocol = make_protocol(WebSocketsSansIOProtocol)
    has(protocol, "loop", "conn", "queue", "frames", "writable", "close_sent", "transport", for_module=module)
    has(
        protocol,
        *("handle_ping", "handle_pong", "handle_cont", "send_receive_event_to_app", "send"),
        for_module=module,
    )
    for name in ("fail", "data_to_send"):
        assert callable(getattr(protocol.conn, name, None)), f"{module} relies on {name} of its connection."
    source = inspect.getsource(WebSocketsSansIOProtocol)
    for name in ("self.request = ", "self.response = "):
        assert name in source, f"{module} deletes {name.split()[0]} once a socket is accepted."


def test_uvicorns_server_asks_every_tenth_of_a_second_and_knows_its_connections():
    module = "config.http.web_server.DrainingServer"
    has(uvicorn.Server, "startup", "handle_exit", "on_tick", for_module=module)
    assert list(inspect.signature(uvicorn.Server.on_tick).parameters) == ["self", "counter"], module
    assert isinstance(ServerState().connections, set), module
    assert "asyncio.sleep(0.1)" in inspect.getsource(uvicorn.Server.main_loop), module


# --- Redis, kombu and Celery ---


def test_redis_writes_directly_when_there_is_no_timeout():
    module = "config.core.redis._DirectWriteConnection"
    source = inspect.getsource(redis.asyncio.Connection.send_packed_command)
    assert list(inspect.signature(redis.asyncio.Connection.send_packed_command).parameters) == [
        "self",
        "command",
        "check_health",
    ], module
    assert "if self.socket_timeout:" in source, f"{module} sets socket_timeout to None to avoid wait_for."
    has(redis.asyncio.Connection, "pack_command", for_module=module)
    has(redis.asyncio.ConnectionPool(), "connection_class", for_module=module)


def test_kombus_redis_channel_has_what_the_consumer_watch_reads():
    has(redis_transport.Channel, "_brpop_sent_at", for_module="config.consumer_health.ConsumerWatch")
    assert "self._brpop_sent_at = monotonic()" in inspect.getsource(redis_transport.Channel), (
        "config.consumer_health.ConsumerWatch compares _brpop_sent_at with the monotonic clock."
    )
    has(
        redis_transport.QoS,
        "ack",
        "reject",
        "can_consume",
        for_module="config.consumer_health.SlotFreeingQoS",
    )
    assert issubclass(redis_transport.QoS, virtual.QoS), (
        "config.consumer_health.SlotFreeingQoS calls virtual.QoS."
    )
    assert redis_transport.Channel.QoS is not None, "config.consumer_health replaces Channel.QoS."
    has(redis_transport.Channel, "client", "unacked_key", for_module="diagnostics.broker_queues")
    assert "timeout = self.brpop_timeout" in inspect.getsource(redis_transport.Channel._brpop_start), (
        "config.consumer_health.ConsumerStep sets the channel's brpop_timeout."
    )
    has(Connection, "channel_errors", "connection_errors", for_module="diagnostics.broker_queues")


def test_celerys_worker_state_has_what_the_consumer_watch_reads():
    from celery.worker import state

    has(
        state,
        *("should_stop", "should_terminate", "active_requests"),
        for_module="config.consumer_health.ConsumerWatch",
    )


# --- aiohttp and the SDKs of providers ---


async def break_stream_after(data):
    loop = asyncio.get_running_loop()
    reader = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    reader.feed_data(data)
    reader.set_exception(aiohttp.ClientPayloadError("cut"))
    with pytest.raises(aiohttp.ClientPayloadError):
        await reader.readany()
    return reader._read_nowait(-1)


def test_aiohttp_keeps_what_arrived_before_a_connection_broke():
    has(aiohttp.StreamReader, "_read_nowait", "on_eof", "is_eof", for_module="copilot.providers.http_stream")
    assert asyncio.run(break_stream_after(b"arrived")) == b"arrived", (
        "copilot.providers.http_stream.ResponseStream relies on _read_nowait(-1)."
    )


async def find_reader_of(client):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, client, client.stream("GET", f"http://127.0.0.1:{port}/") as response:
        return _find_raw_reader(response)


@pytest.mark.parametrize("sdk", [openai, anthropic])
def test_aiohttps_reader_is_found_below_the_sdks_layers(sdk):
    async def find():
        return await find_reader_of(sdk.DefaultAioHttpClient())

    assert isinstance(asyncio.run(find()), aiohttp.StreamReader), (
        f"copilot.providers.http_stream._find_raw_reader no longer finds aiohttp's reader in replies of {sdk.__name__}; "
        "each read costs several coroutines more."
    )


# --- discord.py ---


def test_discords_client_waits_at_the_event_that_we_set():
    module = "linking.platforms.discord.adapter"
    source = inspect.getsource(discord.http.HTTPClient)
    assert "self._global_over: asyncio.Event = " in source, f"{module} relies on _global_over being an event."
    assert "await self._global_over.wait()" in source, (
        f"{module} sets _global_over so that no call waits for ever."
    )


# --- MCP ---


def test_the_mcp_sdk_names_its_streams_where_we_import_them():
    from mcp.shared._stream_protocols import ReadStream, WriteStream

    has(ReadStream, "receive", "aclose", for_module="copilot.tools.mcp.server_connection")
    has(WriteStream, "send", "aclose", for_module="copilot.tools.mcp.server_connection")


# --- Nothing else ---

PRODUCT = ("config", "copilot", "billing", "linking", "diagnostics")
WITH_A_CONTRACT = {
    "_aiohttp_response", "_acached_user", "_brpop_sent_at", "_cache", "_cached_user", "_catalog",
    "_get_response", "_get_response_bodies", "_get_response_for_code", "_global_over", "_js_module_import_aggregation_patterns",
    "_middleware_chain", "_raw_delete", "_read_nowait", "_registry", "_request", "_resource_closers", "_size", "_stream",
    "_view_middleware", "_work_queue",
}  # fmt: skip
PRIVATE_MODULES = {"uvicorn._types", "mcp.shared._stream_protocols", "django.utils.functional._StrPromise"}
DOCUMENTED = {"_meta", "_default_manager", "_replace", "_fields", "_exit"}


def list_product_trees():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f"{name}/*.py" for name in PRODUCT)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths if path.exists()}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def test_every_private_part_of_a_library_in_use_has_a_contract():
    trees = list_product_trees()
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    ours = {
        node.name
        for _, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    ours |= {node.id for _, node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    ours |= {
        node.attr for _, node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    known = ours | WITH_A_CONTRACT | DOCUMENTED
    unknown = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, node in nodes
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in known
    ]
    for path, node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            private = any(is_private(part) for name in names for part in name.split("."))
            if private and not names & PRIVATE_MODULES and node.module.split(".")[0] not in PRODUCT:
                unknown.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert not unknown, f"Add a contract to this file for: {'; '.join(unknown)}"
