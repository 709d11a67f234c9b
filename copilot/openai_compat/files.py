"""Take the images and files of a request: from its body, from a public URL, or from the caller's workspace."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from django.conf import settings
from yarl import URL

from config.core import url_safety
from config.core.db import run_in_thread
from config.core.errors import InvalidRequest
from copilot.files import content_types
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.openai_compat.requests import RequestFile
from copilot.realtime.payloads import AttachmentPayload
from copilot.tools.base import ToolError
from copilot.tools.builtin.web_fetch import get_http_client
from copilot.tools.results import describe_scan, wait_for_scans

MAX_REQUEST_FILES = 50  # in all messages of a request
MAX_FETCHED_FILES = 10  # of them, those that we fetch


@dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """The files of a request as attachments; `new` were stored for it."""

    attachments: dict[RequestFile, AttachmentPayload] = field(default_factory=dict)
    new: Sequence[WorkspaceFile] = ()


async def store_request_files(user_id: int, wanted: Iterable[RequestFile]) -> StoredFiles:
    """Store each file once. Refuse the request if one cannot be read, is not what it claims, or is harmful."""
    wanted = list(dict.fromkeys(wanted))
    if not wanted:
        return StoredFiles()
    if len(wanted) > MAX_REQUEST_FILES:
        raise _refuse(f"You can send up to {MAX_REQUEST_FILES} files.")
    if sum(file.is_remote for file in wanted) > MAX_FETCHED_FILES:
        raise _refuse(f"Up to {MAX_FETCHED_FILES} files are fetched from their URLs. Send the others along.")
    contents = {file: await _read_content(user_id, file) for file in wanted if not file.file_id}
    stored = await run_in_thread(_store_all_or_none, user_id, wanted, contents)
    await wait_for_scans(stored.new)
    if any(describe_scan(file) for file in stored.new):
        await run_in_thread(files.discard_files, stored.new)
        raise _refuse("A file could not be used: the virus scan has not cleared it.")
    return stored


def _store_all_or_none(
    user_id: int, wanted: Sequence[RequestFile], contents: dict[RequestFile, bytes]
) -> StoredFiles:
    new: list[WorkspaceFile] = []
    with ExitStack() as undo:
        undo.callback(files.discard_files, new)
        attachments = _store_all(user_id, wanted, contents, new)
        undo.pop_all()
    return StoredFiles(attachments=attachments, new=new)


def _store_all(
    user_id: int,
    wanted: Sequence[RequestFile],
    contents: dict[RequestFile, bytes],
    new: list[WorkspaceFile],
) -> dict[RequestFile, AttachmentPayload]:
    named = [file.file_id for file in wanted if file.file_id]
    found, missing = files.resolve_attachments(user_id, named)
    if missing:
        raise _refuse(f"There is no file {missing[0][:100]!r}.", code="file_not_found")
    known = {view.file_id: view for view in found}
    attachments: dict[RequestFile, AttachmentPayload] = {}
    for file in wanted:
        if file.file_id:
            attachments[file] = known[file.file_id]
            continue
        stored = files.store_file(user_id, name=_choose_name(file), content=contents[file], source="upload")
        new.append(stored)
        attachments[file] = files.to_attachment_view(stored)
    return attachments


def _choose_name(file: RequestFile) -> str:
    if file.name:
        return file.name
    address = url_safety.split_url(file.url) if file.is_remote else None
    name = address.path.rsplit("/", 1)[-1] if address is not None else ""
    return name or ("image" if file.is_image else "file")


async def _read_content(user_id: int, file: RequestFile) -> bytes:
    content = await _fetch(user_id, file.url) if file.is_remote else _decode_data_url(file.url)
    if file.is_image and content_types.detect_image_type(content) not in content_types.NATIVE_IMAGES:
        raise _refuse("An image is not a PNG, JPEG, GIF or WebP image.", code="invalid_image")
    if file.is_image and len(content) > content_types.MAX_IMAGE_BYTES:
        raise _refuse(
            f"Images can be up to {content_types.MAX_IMAGE_BYTES // 2**20} MB.", code="invalid_image"
        )
    return content


def _decode_data_url(url: str) -> bytes:
    """Decode a data URL, or Base64 alone, as some clients send it."""
    head, comma, data = url.partition(",") if url.startswith("data:") else ("data:;base64", ",", url)
    try:
        if head.endswith(";base64"):
            return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        comma = ""
    if not comma:
        raise _refuse("A file is not a valid data URL.")
    return unquote_to_bytes(data)


async def _fetch(user_id: int, url: str) -> bytes:
    """Fetch a public URL by the rules of the tool that fetches pages, without asking anybody."""
    url_safety.count_lookups_for(f"user:{user_id}")
    try:
        if host := url_safety.match_host(URL(url), settings.ASK_BEFORE_HOSTS):
            raise _refuse(f"Files of {host} are not fetched here. Send the file along.", code="invalid_url")
    except ValueError:
        raise _refuse("A file's URL is not valid.", code="invalid_url") from None
    try:
        fetched = await get_http_client().fetch(
            url, ask_first=settings.ASK_BEFORE_HOSTS, stay_on=settings.WEB_FETCH_ALLOWED_HOSTS
        )
    except ToolError as problem:
        raise _refuse(f"A file could not be fetched: {problem.message}", code="invalid_url") from problem
    if fetched.status >= 400 or fetched.cut:
        what = "it is too large" if fetched.cut else f"its server answered {fetched.status}"
        raise _refuse(f"A file could not be fetched: {what}.", code="invalid_url")
    return fetched.body


def _refuse(message: str, *, code: str = "invalid_file") -> InvalidRequest:
    return InvalidRequest(message, code=code, param="messages")
