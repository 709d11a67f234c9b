"""A REST API and a gateway of Discord: messages, interactions' replies, a socket that can be cut and resumed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from tests.platform_fakes import recorded
from tests.platform_fakes.serving import Fake, answer

TOKEN = "MTE4NTIzNDU2Nzg5MDEyMDkwMQ.fake.discord-token"  # the bot's user id in its first part
REPLY_SECONDS = 15 * 60
MANAGERS = "888888888888888801"  # a role that may manage the server
FILE_BYTES = 10 * 2**20


@dataclass
class Sent:
    id: str
    channel_id: str
    content: str
    components: list[dict[str, Any]] = field(default_factory=list)
    flags: int = 0
    edits: int = 0
    changed_at: float = 0.0

    @property
    def buttons(self) -> list[dict[str, Any]]:
        return [button for row in self.components for button in row["components"]]


class Discord(Fake):
    def __init__(self, token: str = TOKEN, app_id: str = recorded.DISCORD_APP) -> None:
        super().__init__()
        self.token = token
        self.app_id = app_id
        self.messages: dict[str, Sent] = {}
        self.replies: dict[str, float] = {}  # tokens of interactions, and when they were given
        self.originals: dict[str, str] = {}
        self.promised: set[str] = set()  # replies that people see as "thinking"
        self.admins: set[str] = set()
        self.failures: deque[web.Response | float] = deque()
        self.edit_seconds = 0.0
        self.forbidden: set[str] = set()
        self.calls: list[str] = []
        self.files: list[tuple[str, bytes]] = []
        self.commands: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, bytes] = {}  # what people have sent, by its name
        self.clock: Callable[[], float] = time.monotonic
        self.sockets: list[web.WebSocketResponse] = []
        self.identified = 0
        self.resumed = 0
        self.close_code: int | None = None  # with which the next connection is refused
        self._nonces: dict[str, str] = {}
        self._number = 5000
        self._sequence = 0
        self._log: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        made = web.Application(client_max_size=50 * 2**20)
        made.router.add_get("/gateway", self._gateway)
        made.router.add_get("/attachments/{name}", self._download)
        made.router.add_route("*", "/api/{tail:.*}", self._handle)
        return made

    def shown(self, channel_id: str) -> list[Sent]:
        with self.lock:
            return [one for one in self.messages.values() if one.channel_id == channel_id]

    def interaction(self, token: str, channel_id: str = recorded.CHANNEL, *, promised: bool = True) -> None:
        """Discord gave out this token; unless it was for a button, somebody sees that we think."""
        self.replies[token] = self.clock()
        if promised:
            self.promised.add(token)
        self.originals[token] = channel_id

    async def _handle(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/api")
        hook = path.startswith("/webhooks/")
        if not hook and request.headers.get("Authorization") != f"Bot {self.token}":
            return answer({"code": 0, "message": "401: Unauthorized"}, status=401)
        self.calls.append(f"{request.method} {path}")
        if self.failures and path != "/users/@me":
            failure = self.failures.popleft()
            if isinstance(failure, web.Response):
                return failure
            await asyncio.sleep(failure)
        fields = {}
        if request.content_type == "application/json" and request.can_read_body:
            fields = await request.json()
        elif request.content_type == "multipart/form-data":
            fields = await self._form(request)
        parts = path.strip("/").split("/")
        return (
            self._reply(request.method, parts, fields) if hook else self._route(request.method, parts, fields)
        )

    async def _form(self, request: web.Request) -> dict[str, Any]:
        sent = await request.post()
        file = sent["files[0]"]
        assert isinstance(file, web.FileField)
        content = file.file.read()
        if not 0 < len(content) <= FILE_BYTES:
            self.refuse("a file that is too large")
        self.files.append((file.filename, content))
        return dict(json.loads(str(sent["payload_json"]))) | {"files": 1}

    async def _download(self, request: web.Request) -> web.Response:
        return web.Response(body=self.kept[request.match_info["name"]])

    def _route(self, method: str, parts: list[str], fields: dict[str, Any]) -> web.Response:
        match method, parts:
            case "GET", ["users", "@me"]:
                return answer(
                    {
                        "id": recorded.DISCORD_BOT,
                        "username": "pilot",
                        "discriminator": "0",
                        "avatar": None,
                        "bot": True,
                    }
                )
            case "PUT", ["applications", self.app_id, "commands"]:
                definitions: list[dict[str, Any]] = list(fields)  # type: ignore[arg-type]  # this call sends a list
                self.commands = {one["name"]: one for one in definitions}
                return answer(definitions)
            case "GET", ["oauth2" | "applications", *_]:
                return answer(_application(self.app_id))
            case "GET", ["guilds", guild_id]:
                roles = [{"id": guild_id, "permissions": "1024"}, {"id": MANAGERS, "permissions": "32"}]
                return answer({"id": guild_id, "name": "Boats", "owner_id": "1", "roles": roles})
            case "GET", ["guilds", _, "members", user_id]:
                held = [MANAGERS] if user_id in self.admins else []
                return answer({"user": {"id": user_id, "username": "x"}, "roles": held})
            case "POST", ["users", "@me", "channels"]:
                return answer({"id": f"9{fields['recipient_id']}", "type": 1})
            case "POST", ["channels", channel, "typing"]:
                return web.Response(status=204)
            case "POST", ["channels", channel, "messages"]:
                return self._post(channel, fields)
            case "PATCH", ["channels", channel, "messages", message_id]:
                return self._edit(message_id, fields)
            case _:
                return answer({"code": 0, "message": "404: Not Found"}, status=404)

    def _reply(self, method: str, parts: list[str], fields: dict[str, Any]) -> web.Response:
        """By an interaction's token, which lives for fifteen minutes and needs no other proof."""
        token = parts[2]
        if parts[1] != self.app_id or token not in self.replies:
            return answer({"code": 10015, "message": "Unknown Webhook"}, status=404)
        if self.clock() - self.replies[token] > REPLY_SECONDS:
            return answer({"code": 50027, "message": "Invalid Webhook Token"}, status=401)
        channel = self.originals[token]
        match method, parts[3:]:
            case "PATCH", ["messages", "@original"]:
                self.promised.discard(token)
                return self._post(channel, fields)
            case "PATCH", ["messages", message_id]:
                return self._edit(message_id, fields)
            case "DELETE", ["messages", "@original"]:
                self.promised.discard(token)
                return web.Response(status=204)
            case "POST", [] if token in self.promised:  # it fills the promised reply, for everybody to see
                self.promised.discard(token)
                return self._post(channel, fields | {"flags": int(fields.get("flags", 0)) & ~64})
            case "POST", []:
                return self._post(channel, fields)
            case _:
                return answer({"code": 0, "message": "404: Not Found"}, status=404)

    def _post(self, channel: str, fields: dict[str, Any]) -> web.Response:
        if (problem := self._problem(channel, fields)) is not None:
            return problem
        nonce = str(fields.get("nonce", ""))
        with self.lock:
            if nonce and fields.get("enforce_nonce") and nonce in self._nonces:
                return answer({"id": self._nonces[nonce], "channel_id": channel})
            self._number += 1
            made = Sent(
                id=str(self._number),
                channel_id=channel,
                content=str(fields.get("content", "")),
                components=list(fields.get("components") or []),
                flags=int(str(fields.get("flags", 0))),
                changed_at=time.monotonic(),
            )
            self.messages[made.id] = made
            if nonce:
                self._nonces[nonce] = made.id
        return answer({"id": made.id, "channel_id": channel}, status=200, **BUCKET)

    def _edit(self, message_id: str, fields: dict[str, Any]) -> web.Response:
        known = self.messages.get(message_id)
        if known is None:
            return answer({"code": 10008, "message": "Unknown Message"}, status=404)
        if (problem := self._problem(known.channel_id, fields)) is not None:
            return problem
        now = time.monotonic()
        if now - known.changed_at < self.edit_seconds * 0.9:
            self.refuse(f"an edit after {now - known.changed_at:.2f} s")
            return too_many()
        with self.lock:
            known.content, known.changed_at = str(fields["content"]), now
            known.components = list(fields.get("components") or [])
            known.edits += 1
        return answer({"id": message_id, "channel_id": known.channel_id}, status=200, **BUCKET)

    def _problem(self, channel: str, fields: dict[str, Any]) -> web.Response | None:
        if channel in self.forbidden:
            return answer({"code": 50001, "message": "Missing Access"}, status=403)
        if len(str(fields.get("content", ""))) > 2000:
            self.refuse("a message that is too long")
            return answer({"code": 50035, "message": "Invalid Form Body"}, status=400)
        if (
            not str(fields.get("content", "")).strip()
            and not fields.get("components")
            and "files" not in fields
        ):
            self.refuse("an empty message")
            return answer({"code": 50006, "message": "Cannot send an empty message"}, status=400)
        if len(str(fields.get("nonce", ""))) > 25 or len(fields.get("components") or []) > 5:
            self.refuse("a nonce or rows of buttons that are too long")
            return answer({"code": 50035, "message": "Invalid Form Body"}, status=400)
        if "files" not in fields and not int(str(fields.get("flags", 0))) & 4:
            self.refuse("a message whose links are previewed")
        if fields.get("allowed_mentions") != {"parse": []}:
            self.refuse("a message that may call people")
        for row in fields.get("components") or []:
            for button in row["components"]:
                if (
                    len(row["components"]) > 5
                    or not 1 <= len(button["label"]) <= 80
                    or len(button.get("custom_id", "")) > 100
                ):
                    self.refuse("a row of buttons that is too long")
                    return answer({"code": 50035, "message": "Invalid Form Body"}, status=400)
        return None

    # --- the gateway ---

    def say(self, kind: str, data: dict[str, Any]) -> None:
        """Send an event to everyone who listens, or resumes."""
        self._sequence += 1
        event = {"op": 0, "t": kind, "s": self._sequence, "d": data}
        self._log.append(event)
        for socket in self.sockets:
            asyncio.run_coroutine_threadsafe(socket.send_json(event), self.loop)

    def cut(self, code: int = 4000) -> None:
        """All sockets close, as by a bad line."""
        for socket in list(self.sockets):
            asyncio.run_coroutine_threadsafe(socket.close(code=code), self.loop)

    async def _gateway(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.close_code is not None:
            await socket.close(code=self.close_code)
            return socket
        await socket.send_json({"op": 10, "t": None, "s": None, "d": {"heartbeat_interval": 41250}})
        async for message in socket:
            if message.type == WSMsgType.TEXT:
                await self._heard(socket, json.loads(message.data), str(request.url))
        self.sockets = [one for one in self.sockets if one is not socket]
        return socket

    async def _heard(self, socket: web.WebSocketResponse, frame: dict[str, Any], url: str) -> None:
        match frame["op"]:
            case 1:
                await socket.send_json({"op": 11, "t": None, "s": None, "d": None})
            case 2:
                self.identified += 1
                self._log.clear()
                self._sequence = 1
                await socket.send_json({"op": 0, "t": "READY", "s": 1, "d": _ready(self.app_id, self.url)})
                self.sockets.append(socket)
            case 6:
                self.resumed += 1
                for event in [one for one in self._log if one["s"] > frame["d"]["seq"]]:
                    await socket.send_json(event)
                await socket.send_json({"op": 0, "t": "RESUMED", "s": self._sequence, "d": {}})
                self.sockets.append(socket)
            case _:
                pass


BUCKET = {
    "X-RateLimit-Bucket": "abcd1234",
    "X-RateLimit-Limit": "50",
    "X-RateLimit-Remaining": "49",
    "X-RateLimit-Reset-After": "1",
    "X-RateLimit-Reset": "1763290000",
}


def _application(app_id: str) -> dict[str, Any]:
    return {
        "id": app_id,
        "name": "Pilot",
        "icon": None,
        "description": "",
        "bot_public": False,
        "bot_require_code_grant": False,
        "verify_key": "",
        "flags": 0,
        "summary": "",
        "team": None,
        "owner": {"id": recorded.DISCORD_ADA, "username": "ada", "discriminator": "0", "avatar": None},
    }


def _ready(app_id: str, url: str) -> dict[str, Any]:
    return {
        "v": 10,
        "user": {
            "id": recorded.DISCORD_BOT,
            "username": "pilot",
            "discriminator": "0",
            "avatar": None,
            "bot": True,
        },
        "guilds": [],
        "session_id": "session-1",
        "resume_gateway_url": url.replace("http", "ws") + "/gateway",
        "application": {"id": app_id, "flags": 0},
    }


def too_many(seconds: object = 0.2, *, everywhere: bool = False) -> web.Response:
    return answer(
        {"message": "You are being rate limited.", "retry_after": seconds, "global": everywhere},
        status=429,
        Via="1.1 google",
        **BUCKET,
    )


def broken() -> web.Response:
    return answer({"message": "upstream"}, status=503)
