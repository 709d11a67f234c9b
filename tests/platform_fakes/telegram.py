"""A Bot API of Telegram: getUpdates with offsets, messages with its limits, webhooks that are kept."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser

from aiohttp import web

from tests.platform_fakes import recorded
from tests.platform_fakes.serving import Fake, answer
from tests.support.timeouts import PATIENCE_SECONDS

TAGS = {"b", "i", "s", "u", "code", "pre", "a", "blockquote", "strong", "em"}
METHOD = re.compile(r"/bot([^/]+)/(\w+)")
DOWNLOAD = re.compile(r"/file/bot([^/]+)/documents/([\w.-]+)")
FILE_BYTES = 50 * 2**20


class CannotParse(Exception):
    pass


class _Entities(HTMLParser):
    """Telegram's HTML: a few tags, well nested; everything else must be escaped."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS or (tag == "blockquote" and "blockquote" in self.open):
            raise CannotParse(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise CannotParse(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def visible(text: str, parse_mode: str | None) -> str:
    if parse_mode != "HTML":
        return text
    reader = _Entities()
    reader.feed(text)
    reader.close()
    if reader.open:
        raise CannotParse(reader.open[-1])
    return html.unescape(reader.text)


@dataclass
class Sent:
    id: int
    chat_id: str
    text: str
    thread_id: str = ""
    reply_to: str = ""
    buttons: list[dict[str, str]] = field(default_factory=list)
    edits: int = 0
    changed_at: float = 0.0


class Telegram(Fake):
    def __init__(
        self, token: str = f"{recorded.TELEGRAM_BOT}:fake-telegram-token", username: str = "PilotBot"
    ) -> None:
        super().__init__()
        self.token = token
        self.username = username
        self.messages: dict[int, Sent] = {}
        self.updates: list[dict[str, object]] = []
        self.offsets: list[int] = []
        self.webhook: dict[str, object] = {}
        self.actions: list[str] = []
        self.answered: list[dict[str, str]] = []
        self.files: list[tuple[str, bytes]] = []
        self.commands: list[dict[str, str]] = []
        self.kept: dict[str, bytes] = {}  # what people have sent, by its id
        self.admins: set[str] = set()
        self.blocked: set[str] = set()
        self.silenced: set[str] = set()  # groups where the bot may not speak
        self.moved: dict[str, str] = {}  # groups that became supergroups
        # A response, seconds to be slow, or an event to wait for.
        self.failures: deque[web.Response | float | threading.Event] = deque()
        self.edit_seconds = 0.0  # edits of one message faster than this are refused
        self.counts_rates = False  # whether too many messages are refused, as the real one does
        self.clock: Callable[[], float] = time.monotonic
        self.said_at: list[tuple[float, str]] = []
        self.calls: list[str] = []
        self._polling = False
        self._number = 1000

    def app(self) -> web.Application:
        made = web.Application(client_max_size=50 * 2**20)
        made.router.add_route("*", "/{tail:.*}", self._handle)
        return made

    def say(self, update: dict[str, object]) -> None:
        """Queue an update for the next poll."""
        self.updates.append(update)

    def shown(self, chat_id: str) -> list[Sent]:
        with self.lock:
            return [one for one in self.messages.values() if one.chat_id == chat_id]

    async def _handle(self, request: web.Request) -> web.Response:
        given = DOWNLOAD.fullmatch(request.path)
        if given is not None and given[1] == self.token and given[2] in self.kept:
            return web.Response(body=self.kept[given[2]])
        found = METHOD.fullmatch(request.path)
        if found is None or found[1] != self.token:
            return _error(401, "Unauthorized")
        fields = await _fields(request)
        self.calls.append(found[2])
        if self.failures and found[2] != "getUpdates":
            failure = self.failures.popleft()
            if isinstance(failure, web.Response):
                return failure
            if isinstance(failure, threading.Event):
                await asyncio.to_thread(failure.wait, PATIENCE_SECONDS)
            else:
                await asyncio.sleep(failure)
        method = getattr(self, f"_on_{found[2].lower()}", None)
        if method is None:
            return _error(404, "Not Found: method not found")
        result = method(fields)
        answered: web.Response = await result if asyncio.iscoroutine(result) else result
        return answered

    # --- messages ---

    def _on_sendmessage(self, fields: dict[str, str]) -> web.Response:
        if (problem := self._problem(fields)) is not None:
            return problem
        self._check_previews(fields)
        with self.lock:
            self._number += 1
            reply = json.loads(fields.get("reply_parameters", "{}"))
            made = Sent(
                id=self._number,
                chat_id=fields["chat_id"],
                text=visible(fields["text"], fields.get("parse_mode")),
                thread_id=fields.get("message_thread_id", ""),
                reply_to=str(reply.get("message_id", "")),
                buttons=_buttons(fields),
                changed_at=time.monotonic(),
            )
            self.messages[made.id] = made
        return _ok(_message(made))

    def _check_previews(self, fields: dict[str, str]) -> None:
        if not json.loads(fields.get("link_preview_options", "{}")).get("is_disabled"):
            self.refuse("a message whose links are previewed")

    def _on_editmessagetext(self, fields: dict[str, str]) -> web.Response:
        if (problem := self._problem(fields)) is not None:
            return problem
        self._check_previews(fields)
        known = self.messages.get(int(fields["message_id"]))
        if known is None:
            return _error(400, "Bad Request: message to edit not found")
        now = time.monotonic()
        if now - known.changed_at < self.edit_seconds * 0.9:
            self.refuse(f"an edit after {now - known.changed_at:.2f} s")
            return _error(429, "Too Many Requests: retry after 1", retry_after=1)
        text, buttons = visible(fields["text"], fields.get("parse_mode")), _buttons(fields)
        if (text, buttons) == (known.text, known.buttons):
            return _error(400, "Bad Request: message is not modified: specified new message content …")
        with self.lock:
            known.text, known.buttons, known.changed_at = text, buttons, now
            known.edits += 1
        return _ok(_message(known))

    def _moved_to(self, chat_id: str) -> web.Response | None:
        if (new_id := self.moved.get(chat_id)) is None:
            return None
        words = "Bad Request: group chat was upgraded to a supergroup chat"
        return _error(400, words, migrate_to_chat_id=int(new_id))

    def _problem(self, fields: dict[str, str]) -> web.Response | None:
        if (problem := self._too_often(fields["chat_id"])) is not None:
            return problem
        if (moved := self._moved_to(fields["chat_id"])) is not None:
            return moved
        if fields["chat_id"] in self.blocked:
            return _error(403, "Forbidden: bot was blocked by the user")
        try:
            text = visible(fields["text"], fields.get("parse_mode"))
        except CannotParse:
            self.refuse("HTML that cannot be parsed")
            return _error(400, "Bad Request: can't parse entities: unexpected tag")
        if not text.strip():
            self.refuse("an empty message")
            return _error(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > 4096:
            self.refuse("a message that is too long")
            return _error(400, "Bad Request: message is too long")
        if fields["chat_id"] in self.silenced:
            return _error(400, "Bad Request: not enough rights to send text messages to the chat")
        codes = [button["callback_data"] for button in _buttons(fields) if not button.get("url")]
        if any(not 1 <= len(code.encode()) <= 64 for code in codes):
            self.refuse("a button that carries too much")
            return _error(400, "Bad Request: BUTTON_DATA_INVALID")
        return None

    def _too_often(self, chat_id: str) -> web.Response | None:
        """About one a second in a chat, twenty a minute in a group, thirty a second in all; clocks differ a little."""
        now = self.clock()
        with self.lock:
            self.said_at = [one for one in self.said_at if one[0] > now - 60]
            self.said_at.append((now, chat_id))
            here = [at for at, chat in self.said_at if chat == chat_id]
            everywhere = [at for at, _ in self.said_at]
        rules = [(here, 2.9, 3, "a chat"), (everywhere, 0.95, 30, "all chats")]
        if chat_id.startswith("-"):
            rules.append((here, 59.5, 20, "a group"))
        for times, seconds, most, where in rules:
            if self.counts_rates and sum(at > now - seconds for at in times) > most:
                self.refuse(f"more than {most} in {seconds} s in {where}")
                return too_many(1)
        return None

    def _on_sendchataction(self, fields: dict[str, str]) -> web.Response:
        self.actions.append(fields["chat_id"])
        return _ok(True)

    def _on_answercallbackquery(self, fields: dict[str, str]) -> web.Response:
        if len(fields.get("text", "")) > 200:
            self.refuse("a note that is too long")
            return _error(400, "Bad Request: MESSAGE_TOO_LONG")
        self.answered.append(fields)
        return _ok(True)

    def _on_senddocument(self, fields: dict[str, str]) -> web.Response:
        if (moved := self._moved_to(fields["chat_id"])) is not None:
            return moved
        content = fields["file_content"].encode("latin-1")
        if not 0 < len(content) <= FILE_BYTES:
            self.refuse("a file that is too large")
            return _error(413, "Request Entity Too Large")
        self.files.append((fields["file_name"], content))
        with self.lock:
            self._number += 1
        return _ok(_message(Sent(id=self._number, chat_id=fields["chat_id"], text="")))

    def _on_getfile(self, fields: dict[str, str]) -> web.Response:
        name = fields["file_id"]
        if name not in self.kept:
            return _error(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        found = {"file_id": name, "file_unique_id": name, "file_path": f"documents/{name}"}
        return _ok(found | {"file_size": len(self.kept[name])})

    def _on_setmycommands(self, fields: dict[str, str]) -> web.Response:
        self.commands = json.loads(fields["commands"])
        if any(not re.fullmatch(r"[a-z0-9_]{1,32}", one["command"]) for one in self.commands):
            self.refuse("a command that Telegram cannot show")
        return _ok(True)

    # --- who and where ---

    def _on_getme(self, fields: dict[str, str]) -> web.Response:
        return _ok(
            {
                "id": int(self.token.partition(":")[0]),
                "is_bot": True,
                "first_name": "Pilot",
                "username": self.username,
            }
        )

    def _on_getchatmember(self, fields: dict[str, str]) -> web.Response:
        status = "administrator" if fields["user_id"] in self.admins else "member"
        user = {"id": int(fields["user_id"]), "is_bot": False, "first_name": "X"}
        rights = dict.fromkeys(
            [
                "can_be_edited",
                "is_anonymous",
                "can_manage_chat",
                "can_delete_messages",
                "can_manage_video_chats",
                "can_restrict_members",
                "can_promote_members",
                "can_change_info",
                "can_invite_users",
                "can_post_stories",
                "can_edit_stories",
                "can_delete_stories",
            ],
            False,
        )
        return _ok({"status": status, "user": user, **(rights if status == "administrator" else {})})

    # --- updates ---

    def _on_setwebhook(self, fields: dict[str, str]) -> web.Response:
        self.webhook = dict(fields)
        return _ok(True)

    def _on_deletewebhook(self, fields: dict[str, str]) -> web.Response:
        self.webhook = {}
        return _ok(True)

    def _on_getwebhookinfo(self, fields: dict[str, str]) -> web.Response:
        return _ok(
            {
                "url": self.webhook.get("url", ""),
                "has_custom_certificate": False,
                "pending_update_count": len(self.updates),
            }
        )

    async def _on_getupdates(self, fields: dict[str, str]) -> web.Response:
        if self.webhook:
            return _error(409, "Conflict: can't use getUpdates method while webhook is active")
        if self._polling:
            return _error(409, "Conflict: terminated by other getUpdates request")
        offset = int(fields.get("offset") or 0)
        if offset:
            self.offsets.append(offset)
            self.updates = [one for one in self.updates if int(str(one["update_id"])) >= offset]
        self._polling = True
        try:
            deadline = time.monotonic() + min(int(fields.get("timeout") or 0), 2)
            while not self.updates and time.monotonic() < deadline:  # noqa: ASYNC110 - filled by a thread
                await asyncio.sleep(0.02)
            return _ok(self.updates[: int(fields.get("limit") or 100)])
        finally:
            self._polling = False


async def _fields(request: web.Request) -> dict[str, str]:
    if request.content_type == "application/json":
        return {name: str(value) for name, value in (await request.json()).items()}
    fields: dict[str, str] = {}
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            fields |= {"file_name": value.filename, "file_content": value.file.read().decode("latin-1")}
        else:
            fields[name] = str(value)
    return fields


def _buttons(fields: dict[str, str]) -> list[dict[str, str]]:
    markup = json.loads(fields.get("reply_markup") or "{}")
    return [button for row in markup.get("inline_keyboard", []) for button in row]


def _message(sent: Sent) -> dict[str, object]:
    chat = {"id": int(sent.chat_id), "type": "private"}
    return {"message_id": sent.id, "date": int(time.time()), "chat": chat, "text": sent.text}


def _ok(result: object) -> web.Response:
    return answer({"ok": True, "result": result})


def _error(status: int, description: str, **parameters: object) -> web.Response:
    body: dict[str, object] = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return answer(body, status=status)


def too_many(seconds: object = 1) -> web.Response:
    return _error(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


def broken() -> web.Response:
    return answer({"ok": False, "error_code": 502, "description": "Bad Gateway"}, status=502)
