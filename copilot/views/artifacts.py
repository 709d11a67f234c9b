"""What the frames of the artifacts panel ask for: documents without an origin (S14)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from copilot import artifacts, markdown, words
from copilot.errors import NotFound, Refused
from copilot.views.acting import user_of
from copilot.workspace import files, rendering


@require_GET
def render_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    return _rendered(request, lambda: rendering.file(request, files.get(user_of(request).pk, file_id)))


@require_GET
def render_block(request: HttpRequest, session_id: UUID, message_id: UUID, index: int) -> HttpResponse:
    """A code block of an answer, by its place in it."""

    def block() -> HttpResponse:
        html = markdown.code_block(artifacts.answer(user_of(request).pk, session_id, message_id), index)
        if html is None:
            raise NotFound
        return rendering.text(request, html)

    return _rendered(request, block)


def _rendered(request: HttpRequest, document: Callable[[], HttpResponse]) -> HttpResponse:
    """Nothing is looked for unless a frame of somebody who is logged in asks: no login form in a frame."""
    if not request.user.is_authenticated or not rendering.is_framed(request):
        raise Http404
    try:
        return document()
    except NotFound as problem:
        raise Http404 from problem
    except Refused as problem:
        return HttpResponse(
            words.of_refusal(problem), status=problem.status, content_type="text/plain; charset=utf-8"
        )
