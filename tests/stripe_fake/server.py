"""The fake's socket: bearer, version and idempotency keys are looked at as Stripe does, then the world answers."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.stripe_fake import faults, forms, pages, routes
from tests.stripe_fake.faults import FaultKind, Faults
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import API_VERSION, Problem, World

KEPT = (402, 500)  # answers besides success that a key repeats; what was never begun is not kept


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request as it came: the call log."""

    method: str
    path: str
    params: Obj
    key: str
    status: int


@dataclass(frozen=True, kw_only=True)
class Kept:
    asked: tuple[str, str, str]
    status: int
    body: bytes


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], world: World, secret_key: str) -> None:
        super().__init__(address, Handler)
        self.world = world
        self.secret_key = secret_key
        self.faults = Faults()
        self.calls: list[Seen] = []
        self.kept: dict[str, Kept] = {}
        self.over = threading.Event()
        self.bugs: list[BaseException | None] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is what faults are for; anything else is a bug of the fake's."""
        problem = sys.exc_info()[1]
        if not isinstance(problem, OSError):
            self.bugs.append(problem)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent; the call log knows."""

    def _serve(self, method: str) -> None:
        if (
            self.server.over.is_set()
        ):  # a connection that outlived its server: another may listen there by now
            self._break("reset")
            return
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if not parts.path.startswith("/v1/"):
            pages.serve(self, method, parts.path, forms.decoded(body))
            return
        fault = self.server.faults.next_for(method, parts.path)
        if fault in ("hang", "drip", "reset"):
            self._break(fault)
            return
        status, answer, replayed = self._answer(method, parts.path, f"{parts.query}{body}", fault)
        if fault in ("hang_after", "reset_after"):
            self._break(fault)
            return
        headers = {"Idempotent-Replayed": "true"} if replayed else {}
        if fault == "stored_error":
            headers["Stripe-Should-Retry"] = "false"
        self.reply(status, answer, "application/json", headers)

    def _break(self, fault: FaultKind) -> None:
        self.close_connection = True
        if fault.startswith("hang"):
            faults.hang(self.connection, self.server.over)
        elif fault == "drip":
            faults.drip(self.connection, self.server.over)
        faults.reset(self.connection)

    def _answer(self, method: str, path: str, text: str, fault: FaultKind | None) -> tuple[int, bytes, bool]:
        """Under the world's lock: requests happen one after the other."""
        server, key = self.server, self.headers.get("Idempotency-Key", "") if method == "POST" else ""
        with server.world.lock:
            kept, asked = server.kept.get(key), (method, path, text)
            if key and kept and server.world.keeps("keys_repeat_answers"):
                if kept.asked == asked:
                    self._log(method, path, text, key, kept.status)
                    return kept.status, kept.body, True
                fault = None
            clash = (
                kept is not None and kept.asked != asked and server.world.keeps("keys_belong_to_one_request")
            )
            status, answer = self._outcome(method, path, text, fault, clash=clash)
            if key and not kept and fault != "error" and (status < 300 or status in KEPT):
                server.kept[key] = Kept(asked=asked, status=status, body=answer)
            self._log(method, path, text, key, status)
            return status, answer, False

    def _outcome(
        self, method: str, path: str, text: str, fault: FaultKind | None, *, clash: bool
    ) -> tuple[int, bytes]:
        try:
            self._admit(fault, clash=clash)
            return 200, json.dumps(
                routes.answer(self.server.world, method, path, forms.decoded(text))
            ).encode()
        except (KeyError, IndexError, TypeError, AttributeError, AssertionError) as bug:
            self.server.bugs.append(bug)
            return 500, json.dumps({"error": {"type": "api_error", "message": repr(bug)}}).encode()
        except Problem as problem:
            return problem.status, json.dumps(problem.body).encode()

    def _admit(self, fault: FaultKind | None, *, clash: bool) -> None:
        keeps = self.server.world.keeps
        stranger = self.headers.get("Authorization") != f"Bearer {self.server.secret_key}"
        if (stranger and keeps("bearer_is_checked")) or fault == "unauthorised":
            raise Problem("Invalid API Key provided.", status=401, code="api_key_expired")
        if self.headers.get("Stripe-Version") != API_VERSION and keeps("version_is_checked"):
            raise Problem("Invalid Stripe API version.", status=400)
        if clash:
            raise Problem(
                "Keys for idempotent requests can only be used with the same parameters they were first used with.",
                kind="idempotency_error",
            )
        if fault == "limit":
            raise Problem("Too many requests.", status=429, code="rate_limit")
        if fault == "declined":
            raise Problem("Your card was declined.", status=402, kind="card_error", code="card_declined")
        if fault in ("error", "stored_error"):
            raise Problem("An unknown error occurred.", status=500, kind="api_error")

    def _log(self, method: str, path: str, text: str, key: str, status: int) -> None:
        self.server.calls.append(
            Seen(method=method, path=path, params=forms.decoded(text), key=key, status=status)
        )

    def reply(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Request-Id", "req_fake")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
