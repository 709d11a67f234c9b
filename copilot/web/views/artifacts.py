"""Documents for the frames of the artifacts panel, served without an origin."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from config.core.errors import NotFound, RequestRefused
from copilot.files import artifacts, html_preview
from copilot.files import services as files
from copilot.web import i18n, markdown
from copilot.web.views.base import get_request_user


@require_GET
def render_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    return _render_in_frame(
        request,
        lambda: html_preview.render_html_file(request, files.get_file(get_request_user(request).pk, file_id)),
    )


@require_GET
def render_block(request: HttpRequest, session_id: UUID, message_id: UUID, index: int) -> HttpResponse:
    """Render a code block of an answer by its index."""

    def render_code_block() -> HttpResponse:
        html = markdown.extract_code_block(
            artifacts.get_answer_text(get_request_user(request).pk, session_id, message_id), index
        )
        if html is None:
            raise NotFound
        return html_preview.render_html_text(request, html)

    return _render_in_frame(request, render_code_block)


def _render_in_frame(request: HttpRequest, render_document: Callable[[], HttpResponse]) -> HttpResponse:
    """Answer only frames of signed-in people, so that no login form ever appears in a frame."""
    if not request.user.is_authenticated or not html_preview.is_frame_request(request):
        raise Http404
    try:
        return render_document()
    except NotFound as problem:
        raise Http404 from problem
    except RequestRefused as problem:
        return HttpResponse(
            i18n.translate_refusal(problem), status=problem.status, content_type="text/plain; charset=utf-8"
        )
