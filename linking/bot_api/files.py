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

from config.core.api.views import document_operation, respond_json
from config.core.errors import InvalidRequest, NotFound, PayloadTooLarge
from config.core.validation import parse_uuid
from copilot.files import downloads
from copilot.files import services as files
from linking.bot_api.serializers import to_bot_account
from linking.bot_api.views import BotAPIView
from linking.conversations import services as conversations
from linking.models import PlatformConversation

MAX_FILE_BYTES = 20 * 1024 * 1024
UPLOAD_SCHEMA = {
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


class BotFilesView(BotAPIView):
    scope = "turns:start"
    parser_classes = [MultiPartParser]

    def initialize_request(self, request: HttpRequest, *args: object, **kwargs: object) -> Request:
        """What is too long by its own word is not read at all."""
        declared = request.META.get("CONTENT_LENGTH") or "0"
        self.is_too_long = not declared.isdecimal() or int(declared) > MAX_FILE_BYTES + 64 * 1024
        return super().initialize_request(request, *args, **kwargs)

    @document_operation(
        "Put a file into a conversation, for its next message", answers={201: BotFile}, body=UPLOAD_SCHEMA
    )
    def post(self, request: Request) -> HttpResponse:
        if not request.content_type.lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType(request.content_type)
        if self.is_too_long:
            raise _file_too_large()
        form = request._request
        unknown = (set(form.POST) | set(form.FILES)) - {"file", "conversation_id"}
        if unknown:
            raise InvalidRequest(f"{sorted(unknown)[0][:100]}: there is no such field.")
        sent = form.FILES.getlist("file")
        if len(sent) != 1:
            raise InvalidRequest("file: send exactly one.")
        if (sent[0].size or 0) > MAX_FILE_BYTES:
            raise _file_too_large()
        place = self._get_conversation(str(form.POST.get("conversation_id", "")))
        stored = files.store_file(
            place.session.owner_id,
            name=str(sent[0].name),
            content=sent[0],
            source="upload",
            session_id=place.session_id,
        )
        shown = BotFile(
            id=str(stored.id), name=stored.name, type=stored.mime, size=stored.size_bytes, scan=stored.scan
        )
        return respond_json(shown, 201)

    def _get_conversation(self, text: str) -> PlatformConversation:
        conversation_id = parse_uuid(text)
        found = (
            conversations.find_conversation(to_bot_account(self.key), conversation_id)
            if conversation_id
            else None
        )
        if found is None or found.closed_at is not None:
            raise NotFound
        return found


class AnyMediaTypeRenderer(BaseRenderer):
    """For content negotiation alone: the file has the type it has."""

    media_type = "*/*"
    format = "file"


class BotFileView(BotAPIView):
    scope = "turns:read"
    renderer_classes = [AnyMediaTypeRenderer]

    @document_operation(
        "Download a file of a conversation", answers={(200, "application/octet-stream"): bytes}
    )
    def get(self, request: Request, file_id: UUID) -> HttpResponseBase:
        """Only what lies in a session of this bot's own; of the account's other files it knows nothing."""
        owned = conversations.find_file_owner(to_bot_account(self.key), file_id)
        if owned is None:
            raise NotFound
        return downloads.build_download_response(request._request, files.get_file(owned, file_id))


def _file_too_large() -> PayloadTooLarge:
    limit = MAX_FILE_BYTES // 1024**2
    return PayloadTooLarge(
        f"A file may have {limit} MB here.", code="file_too_large", limit_bytes=MAX_FILE_BYTES
    )
