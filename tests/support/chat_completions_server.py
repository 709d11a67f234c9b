"""Serve Chat Completions over a real socket, scripted by the test like the model of turn_engine.py."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedPause,
    ScriptedText,
    ScriptedUsage,
    ScriptItem,
)
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import Replier


class ChatServer:
    """Answer as `otherwise` says; it receives the messages and tools of the request body."""

    def __init__(self) -> None:
        self.otherwise: Replier = lambda request: [ScriptedText("Aye.")]
        self.bodies: list[dict[str, Any]] = []
        self._reached: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}/v1"

    def reaches(self, number: int) -> None:
        assert self._reached[number].wait(PATIENCE_SECONDS * 3), f"no stream came to cue {number}"

    def reply(self, body: dict[str, Any]) -> Sequence[ScriptItem]:
        with self._lock:
            self.bodies.append(body)
            return self.otherwise(SimpleNamespace(tools=body.get("tools", []), messages=body["messages"]))  # type: ignore[arg-type]

    def wait(self, number: int) -> None:
        self._reached[number].set()
        self._over.wait()

    def close(self) -> None:
        self._over.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                items = model.reply(body)
                if isinstance(items[0], ScriptedFailure):
                    self._refuse(items[0])
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for chunk in chunks(items, model):
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")

            def _refuse(self, failure: ScriptedFailure) -> None:
                self.send_response(failure.status or 500)
                for name, value in (failure.headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write((failure.body or '{"error": {"message": "no"}}').encode())

            def log_message(self, *args: object) -> None: ...

        return Handler


def chunks(items: Sequence[ScriptItem], model: ChatServer) -> Iterator[dict[str, Any]]:
    calls = 0
    for item in items:
        match item:
            case ScriptedText():
                yield choice({"content": item.text})
            case ScriptedCall():
                function = {"name": item.tool, "arguments": json.dumps(item.arguments)}
                made = {"index": calls, "id": f"call-{len(model.bodies)}-{calls}", "function": function}
                yield choice({"tool_calls": [made]})
                calls += 1
            case ScriptedUsage():
                used = {"prompt_tokens": item.tokens.input, "completion_tokens": item.tokens.output}
                yield choice({}, "tool_calls" if calls else "stop") | {"usage": used}
            case ScriptedPause():
                model.wait(int(item.seconds))
                return
            case _:
                raise AssertionError(f"this server cannot say {item}")


def choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "chat", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@contextmanager
def serving() -> Iterator[ChatServer]:
    made = ChatServer()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        made.close()
