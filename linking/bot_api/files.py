"""Files that go with a bot's message, and those that were made in its conversation (L11, S7)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot.commands import as_uuid
from copilot.errors import InvalidRequest, NotFound, TooLarge
from copilot.workspace import downloads, files
from linking import conversations
from linking.bot_api.places import bot_of
from linking.doors import BotDoor
from linking.models import PlatformConversation

LARGEST_BYTES = 20 * 1024 * 1024
FORM = {
    "multipart/form-data": {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "conversation_id": {"type": "string", "format": "uuid"},
        },
        "required": ["file", "conversation_id"],
        "additionalProperties": False,
    }
}


@dataclass(frozen=True, kw_only=True)
class BotFile:
    id: str
    name: str
    type: str
    size: int
    scan: str


class BotFilesView(BotDoor):
    scope = "turns:start"
    parser_classes = [MultiPartParser]

    def initialize_request(self, request: HttpRequest, *args: object, **kwargs: object) -> Request:
        """What is too long by its own word is not read at all."""
        declared = request.META.get("CONTENT_LENGTH") or "0"
        self.too_long = not declared.isdecimal() or int(declared) > LARGEST_BYTES + 64 * 1024
        return super().initialize_request(request, *args, **kwargs)

    @operation("Put a file into a conversation, for its next message", answers={201: BotFile}, body=FORM)
    def post(self, request: Request) -> HttpResponse:
        if not request.content_type.lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType(request.content_type)
        if self.too_long:
            raise _too_large()
        form = request._request
        unknown = (set(form.POST) | set(form.FILES)) - {"file", "conversation_id"}
        if unknown:
            raise InvalidRequest(f"{sorted(unknown)[0][:100]}: there is no such field.")
        sent = form.FILES.getlist("file")
        if len(sent) != 1:
            raise InvalidRequest("file: send exactly one.")
        if (sent[0].size or 0) > LARGEST_BYTES:
            raise _too_large()
        place = self._conversation(str(form.POST.get("conversation_id", "")))
        stored = files.store(
            place.session.owner_id,
            name=str(sent[0].name),
            content=sent[0],
            source="upload",
            session_id=place.session_id,
        )
        shown = BotFile(
            id=str(stored.id), name=stored.name, type=stored.mime, size=stored.size_bytes, scan=stored.scan
        )
        return answer(shown, 201)

    def _conversation(self, text: str) -> PlatformConversation:
        conversation_id = as_uuid(text)
        found = conversations.of_bot(bot_of(self.key), conversation_id) if conversation_id else None
        if found is None or found.closed_at is not None:
            raise NotFound
        return found


class Anything(BaseRenderer):
    """For content negotiation alone: the file has the type it has."""

    media_type = "*/*"
    format = "file"


class BotFileView(BotDoor):
    scope = "turns:read"
    renderer_classes = [Anything]

    @operation("Download a file of a conversation", answers={(200, "application/octet-stream"): bytes})
    def get(self, request: Request, file_id: UUID) -> HttpResponseBase:
        """Only what lies in a session of this bot's own; of the account's other files it knows nothing."""
        owned = conversations.owner_of_file(bot_of(self.key), file_id)
        if owned is None:
            raise NotFound
        return downloads.respond(request._request, files.get(owned, file_id))


def _too_large() -> TooLarge:
    limit = LARGEST_BYTES // 1024**2
    return TooLarge(f"A file may have {limit} MB here.", code="file_too_large", limit_bytes=LARGEST_BYTES)
