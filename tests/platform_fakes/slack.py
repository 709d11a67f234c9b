"""A Web API of Slack: messages in threads, ephemeral ones, updates, with its limits on blocks and texts."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.platform_fakes import recorded
from tests.platform_fakes.serving import Fake, answer

SECTION_CHARACTERS = 3000
MOST_BLOCKS, MOST_BUTTONS = 50, 25
BUTTON_LABEL, BUTTON_VALUE, BUTTON_ID, BUTTON_URL = 75, 2000, 255, 3000


@dataclass
class Sent:
    ts: str
    channel: str
    text: str
    thread_ts: str = ""
    only_for: str = ""
    buttons: list[dict[str, Any]] = field(default_factory=list)
    edits: int = 0
    changed_at: float = 0.0
    markup: str = ""


class Slack(Fake):
    def __init__(self, token: str = "xoxb-fake-slack-token-000000") -> None:
        super().__init__()
        self.token = token
        self.app_token = "xapp-fake-slack-token-000000"
        self.messages: dict[str, Sent] = {}
        self.failures: deque[web.Response | float] = deque()
        self.edit_seconds = 0.0
        self.admins: set[str] = set()
        self.shut: set[str] = set()
        self.calls: list[str] = []
        self.files: list[tuple[str, bytes]] = []
        self.kept: dict[str, bytes] = {}  # what people have sent, by its name
        self.sockets: list[web.WebSocketResponse] = []
        self.envelopes: dict[str, dict[str, Any]] = {}  # what nobody has acknowledged yet
        self._uploads: dict[str, tuple[str, bytes]] = {}
        self._number = 0

    def app(self) -> web.Application:
        made = web.Application(client_max_size=50 * 2**20)
        made.router.add_get("/socket", self._socket)
        made.router.add_post("/upload/{id}", self._upload)
        made.router.add_get("/files-pri/{name}", self._download)
        made.router.add_post("/{method}", self._handle)
        return made

    def shown(self, channel: str) -> list[Sent]:
        with self.lock:
            return [one for one in self.messages.values() if one.channel == channel]

    async def _handle(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        token = self.app_token if method == "apps.connections.open" else self.token
        if request.headers.get("Authorization") != f"Bearer {token}":
            return no("invalid_auth")
        self.calls.append(method)
        if self.failures:
            failure = self.failures.popleft()
            if isinstance(failure, web.Response):
                return failure
            await asyncio.sleep(failure)
        if request.content_type == "application/json":
            fields = await request.json()
        else:
            fields = {**request.query, **await request.post()}
        handler = getattr(self, "_on_" + method.replace(".", "_").lower(), None)
        return no("unknown_method") if handler is None else handler(fields)

    def _on_chat_postmessage(self, fields: dict[str, Any], only_for: str = "") -> web.Response:
        if (problem := self._problem(fields)) is not None:
            return problem
        if not only_for and (
            fields.get("unfurl_links") is not False or fields.get("unfurl_media") is not False
        ):
            self.refuse("a message whose links are previewed")
        with self.lock:
            self._number += 1
            made = Sent(
                ts=f"1763290000.{self._number:06d}",
                channel=str(fields["channel"]),
                text=str(fields["text"]),
                thread_ts=str(fields.get("thread_ts", "")),
                only_for=only_for,
                buttons=_buttons(fields),
                changed_at=time.monotonic(),
                markup=_markup(fields),
            )
            self.messages[made.ts] = made
        return answer({"ok": True, "ts": made.ts, "channel": made.channel, "message_ts": made.ts})

    def _on_chat_postephemeral(self, fields: dict[str, Any]) -> web.Response:
        return self._on_chat_postmessage(fields, only_for=str(fields["user"]))

    def _on_chat_update(self, fields: dict[str, Any]) -> web.Response:
        if (problem := self._problem(fields)) is not None:
            return problem
        known = self.messages.get(str(fields["ts"]))
        if known is None:
            return no("message_not_found")
        now = time.monotonic()
        if now - known.changed_at < self.edit_seconds * 0.9:
            self.refuse(f"an edit after {now - known.changed_at:.2f} s")
            return too_many()
        with self.lock:
            known.text, known.buttons, known.changed_at = str(fields["text"]), _buttons(fields), now
            known.markup = _markup(fields)
            known.edits += 1
        return answer({"ok": True, "ts": known.ts, "channel": known.channel})

    def _problem(self, fields: dict[str, Any]) -> web.Response | None:
        if fields["channel"] in self.shut:
            return no("is_archived")
        if not str(fields.get("text", "")).strip():
            self.refuse("no text to fall back on")
            return no("no_text")
        for block in _blocks(fields):
            if block["type"] == "section" and not 1 <= len(block["text"]["text"]) <= SECTION_CHARACTERS:
                self.refuse("a section that is empty or too long")
                return no("invalid_blocks")
        if len(_blocks(fields)) > MOST_BLOCKS or len(_buttons(fields)) > MOST_BUTTONS:
            self.refuse("too many blocks or buttons")
            return no("invalid_blocks")
        if not all(_is_sound(button) for button in _buttons(fields)):
            self.refuse("a button that Slack does not take")
            return no("invalid_blocks")
        ids = [button["action_id"] for button in _buttons(fields)]
        if len(set(ids)) < len(ids):
            self.refuse("two buttons of one name")
            return no("invalid_blocks")
        return None

    # --- Socket Mode ---

    def _on_apps_connections_open(self, fields: dict[str, Any]) -> web.Response:
        return answer({"ok": True, "url": self.url.replace("http", "ws") + "/socket"})

    def say(self, envelope_id: str, kind: str, payload: object) -> None:
        """Send to everyone who listens, until it is acknowledged."""
        self.envelopes[envelope_id] = {"envelope_id": envelope_id, "type": kind, "payload": payload}
        for socket in self.sockets:
            asyncio.run_coroutine_threadsafe(socket.send_json(self.envelopes[envelope_id]), self.loop)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "hello"})
        for envelope in list(self.envelopes.values()):
            await socket.send_json(envelope)
        self.sockets.append(socket)
        async for message in socket:
            self.envelopes.pop(json.loads(message.data)["envelope_id"], None)
        self.sockets.remove(socket)
        return socket

    # --- files, in three steps ---

    def _on_files_getuploadurlexternal(self, fields: dict[str, Any]) -> web.Response:
        self._number += 1
        file_id = f"F{self._number:010d}"
        self._uploads[file_id] = (str(fields["filename"]), b"")
        return answer({"ok": True, "file_id": file_id, "upload_url": f"{self.url}/upload/{file_id}"})

    async def _upload(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        self._uploads[file_id] = (self._uploads[file_id][0], await request.read())
        return web.Response(text="OK")

    def _on_files_completeuploadexternal(self, fields: dict[str, Any]) -> web.Response:
        named = fields["files"]
        done = [one["id"] for one in (json.loads(named) if isinstance(named, str) else named)]
        if not fields.get("channel_id") and not fields.get("channels"):
            self.refuse("a file for nobody")
        self.files += [self._uploads.pop(file_id) for file_id in done]
        return answer({"ok": True, "files": [{"id": file_id} for file_id in done]})

    async def _download(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=302, headers={"Location": "/sign-in"})
        return web.Response(body=self.kept[request.match_info["name"]])

    def _on_users_info(self, fields: dict[str, Any]) -> web.Response:
        profile = {"display_name": "", "real_name": "Ada Lovelace"}
        user = {"id": fields["user"], "is_admin": fields["user"] in self.admins, "profile": profile}
        return answer({"ok": True, "user": user})

    def _on_auth_test(self, fields: dict[str, Any]) -> web.Response:
        return answer(
            {
                "ok": True,
                "user_id": recorded.SLACK_BOT,
                "user": "pilot",
                "team": "Boats",
                "team_id": recorded.TEAM,
            }
        )


def _blocks(fields: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = fields.get("blocks") or []
    return json.loads(blocks) if isinstance(blocks, str) else list(blocks)


def _buttons(fields: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [block["elements"] for block in _blocks(fields) if block["type"] == "actions"]
    return [element for row in rows for element in row]


def _is_sound(button: dict[str, Any]) -> bool:
    return (
        1 <= len(button["text"]["text"]) <= BUTTON_LABEL
        and len(button.get("value", "")) <= BUTTON_VALUE
        and len(button.get("url", "")) <= BUTTON_URL
        and 1 <= len(button["action_id"]) <= BUTTON_ID
    )


def _markup(fields: dict[str, Any]) -> str:
    return "\n".join(block["text"]["text"] for block in _blocks(fields) if block["type"] == "section")


def no(error: str) -> web.Response:
    return answer({"ok": False, "error": error})


def too_many(seconds: object = 1) -> web.Response:
    return answer({"ok": False, "error": "ratelimited"}, status=429, **{"Retry-After": str(seconds)})


def broken() -> web.Response:
    return web.Response(status=503, text="upstream connect error")
