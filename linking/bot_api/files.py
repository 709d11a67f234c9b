"""Views through which bots upload files for a message and download files of their conversations."""

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
from config.core.json_values import parse_uuid
from copilot.files import downloads
from copilot.files import services as files
from linking.bot_api.views import BotAPIView, to_bot_account
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
        # A body that declares too great a length is not read at all.
        declared = request.META.get("CONTENT_LENGTH") or "0"
        self.is_too_long = not declared.isdecimal() or int(declared) > MAX_FILE_BYTES + 64 * 1024
        return super().initialize_request(request, *args, **kwargs)

    @document_operation(
        "Upload a file for the next message of a conversation", answers={201: BotFile}, body=UPLOAD_SCHEMA
    )
    def post(self, request: Request) -> HttpResponse:
        if not request.content_type.lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType(request.content_type)
        if self.is_too_long:
            raise _file_too_large()
        form = request._request
        unknown = (set(form.POST) | set(form.FILES)) - {"file", "conversation_id"}
        if unknown:
            raise InvalidRequest(f"{sorted(unknown)[0][:100]}: unknown field.")
        uploads = form.FILES.getlist("file")
        if len(uploads) != 1:
            raise InvalidRequest("file: send exactly one file.")
        if (uploads[0].size or 0) > MAX_FILE_BYTES:
            raise _file_too_large()
        conversation = self._get_conversation(str(form.POST.get("conversation_id", "")))
        stored = files.store_file(
            conversation.session.owner_id,
            name=str(uploads[0].name),
            content=uploads[0],
            source="upload",
            session_id=conversation.session_id,
        )
        body = BotFile(
            id=str(stored.id), name=stored.name, type=stored.mime, size=stored.size_bytes, scan=stored.scan
        )
        return respond_json(body, 201)

    def _get_conversation(self, text: str) -> PlatformConversation:
        conversation_id = parse_uuid(text)
        conversation = (
            conversations.find_conversation(to_bot_account(self.key), conversation_id)
            if conversation_id
            else None
        )
        if conversation is None or conversation.closed_at is not None:
            raise NotFound
        return conversation


class AnyMediaTypeRenderer(BaseRenderer):
    """Used for content negotiation only; the response has the file's own type."""

    media_type = "*/*"
    format = "file"


class BotFileView(BotAPIView):
    scope = "turns:read"
    renderer_classes = [AnyMediaTypeRenderer]

    @document_operation(
        "Download a file of a conversation", answers={(200, "application/octet-stream"): bytes}
    )
    def get(self, request: Request, file_id: UUID) -> HttpResponseBase:
        owner_id = conversations.find_file_owner(to_bot_account(self.key), file_id)
        if owner_id is None:
            raise NotFound
        return downloads.build_download_response(request._request, files.get_file(owner_id, file_id))


def _file_too_large() -> PayloadTooLarge:
    limit = MAX_FILE_BYTES // 1024**2
    return PayloadTooLarge(
        f"Files can be up to {limit} MB.", code="file_too_large", limit_bytes=MAX_FILE_BYTES
    )
