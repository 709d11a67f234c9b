"""Static files with hashed names, the imports inside our own ES modules included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO

from django.contrib.staticfiles.storage import HashedFilesMixin
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, HttpRequest
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile
from whitenoise.storage import CompressedManifestStaticFilesStorage

_, _IMPORTS = HashedFilesMixin._js_module_import_aggregation_patterns  # type: ignore[attr-defined]


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """`import "./turn.js"` is rewritten to the hashed name; packages' files, whose comments look like imports, are not."""

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = ("js/*.js", _IMPORTS)


PIECE_BYTES = 64 * 1024


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Files in pieces that an event loop can wait for; Django would read them whole first, and warn."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> FileResponse:
        response: FileResponse = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest):
            response.streaming_content = _pieces(response.file_to_stream)
        return response


async def _pieces(file: IO[bytes] | None) -> AsyncIterator[bytes]:
    while file is not None and (piece := await asyncio.to_thread(file.read, PIECE_BYTES)):
        yield piece
