"""Serve static files under hashed names, including imports inside our ES modules, before Django sees the request."""

from __future__ import annotations

from collections.abc import Iterable

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from django.contrib.staticfiles.storage import HashedFilesMixin
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import Redirect, StaticFile
from whitenoise.storage import CompressedManifestStaticFilesStorage

_, _IMPORT_PATTERNS = HashedFilesMixin._js_module_import_aggregation_patterns  # type: ignore[attr-defined]


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Rewrite `import "./turn.js"` to the hashed name in our modules only; comments in vendored files can look like
    imports.
    """

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = ("js/*.js", _IMPORT_PATTERNS)


class StaticFilesMiddleware:
    """ASGI middleware that serves static files, so that the forty files of a page skip Django's middleware.

    The files are small and in the system's cache; reading one is faster than handing it to a thread.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._files = WhiteNoiseMiddleware()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        found = self._find_file(scope["path"])
        if found is None:
            await self._application(scope, receive, send)
            return
        answer = found.get_response(scope["method"], _convert_headers_to_wsgi(scope["headers"]))
        body = b""
        if answer.file is not None:
            with answer.file as file:
                body = file.read()
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        headers.append((b"x-content-type-options", b"nosniff"))
        await send(
            {
                "type": "http.response.start",
                "status": int(answer.status),
                "headers": headers,
                "trailers": False,
            }
        )
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _find_file(self, path: str) -> StaticFile | Redirect | None:
        """Find a file, searching again each time in development (WHITENOISE_AUTOREFRESH)."""
        if not path.startswith(self._files.static_prefix):
            return None
        return self._files.find_file(path) if self._files.autorefresh else self._files.files.get(path)


def _convert_headers_to_wsgi(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {
        f"HTTP_{name.decode('latin1').upper().replace('-', '_')}": value.decode("latin1")
        for name, value in headers
    }
