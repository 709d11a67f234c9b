"""Show untrusted HTML as a document without an origin. No other response runs scripts of users.

The document may run scripts and show images that it contains. It reaches no server, no storage, no cookie and
no page around it, whether it is framed or opened alone.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from config.core.errors import NotFound, PayloadTooLarge
from copilot.files import services as files
from copilot.models import WorkspaceFile

HTML_TYPES = ("text/html", "application/xhtml+xml")
_BOM = b"\xef\xbb\xbf"
_CLICK_SCRIPT = (Path(__file__).parent / "rendering.js").read_bytes()
# Sent before the document's own bytes. The doctype comes first, or every document would be shown in quirks mode.
_PREAMBLE = b"<!doctype html><script>" + _CLICK_SCRIPT + b"</script>"


def is_frame_request(request: HttpRequest) -> bool:
    """Return whether a frame requests it. Opened in a tab, fetched or loaded as a script, it is not found."""
    return request.headers.get("Sec-Fetch-Dest") == "iframe"


def render_html_file(request: HttpRequest, file: WorkspaceFile) -> HttpResponse:
    """Render an HTML file for a frame. The caller has checked that the sender may have it."""
    if not is_frame_request(request) or file.mime not in HTML_TYPES:
        raise NotFound
    if file.size_bytes > settings.ARTIFACT_RENDER_MAX:
        raise PayloadTooLarge("This file is too large to preview.", limit_bytes=settings.ARTIFACT_RENDER_MAX)
    with files.open_file(file) as stream:
        return _build_response(stream.read(settings.ARTIFACT_RENDER_MAX))


def render_html_text(request: HttpRequest, html: str) -> HttpResponse:
    if not is_frame_request(request):
        raise NotFound
    return _build_response(html.encode())


def _build_response(content: bytes) -> HttpResponse:
    response = HttpResponse(_PREAMBLE + content.removeprefix(_BOM), content_type="text/html; charset=utf-8")
    response["Content-Security-Policy"] = _build_csp()
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "Sec-Fetch-Dest, Cookie"
    response["X-Content-Type-Options"] = "nosniff"
    response["X-Frame-Options"] = "SAMEORIGIN"
    response["X-DNS-Prefetch-Control"] = "off"
    response["Referrer-Policy"] = "no-referrer"
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    return response


def _build_csp() -> str:
    hosts = " ".join(["'unsafe-inline'", *settings.ARTIFACT_SCRIPT_HOSTS])
    return (
        "sandbox allow-scripts; default-src 'none'; "
        f"script-src {hosts}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data: blob:; media-src data: blob:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
