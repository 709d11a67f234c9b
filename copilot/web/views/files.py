"""Pages for workspace files, and the documents that the artifacts panel shows in frames."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from config.core.errors import NotFound, RequestRefused
from config.core.json_values import parse_uuid
from copilot.files import artifacts, html_preview, quotas, zip_stream
from copilot.files import services as files
from copilot.sharing import services as sharing
from copilot.web import i18n, markdown
from copilot.web.forms import FileListForm, FileRenameForm, FileSelectionForm, parse_list_query
from copilot.web.views.base import get_request_user, not_found_as_404

PAGE_FILES = 25
FILE_TYPE_CHOICES = (
    ("image", gettext_lazy("Images")),
    ("text", gettext_lazy("Text and code")),
    ("application/pdf", gettext_lazy("PDF")),
    ("audio", gettext_lazy("Audio")),
    ("video", gettext_lazy("Video")),
    ("application", gettext_lazy("Data and other")),
)


@login_required
@never_cache
@require_GET
def list_files(request: HttpRequest) -> HttpResponse:
    return _render_files(request, parse_list_query(request.GET))


def _render_files(
    request: HttpRequest, query: dict[str, str], *, wrong: FileRenameForm | None = None
) -> HttpResponse:
    owner_id = get_request_user(request).pk
    page = files.get_file_page(
        owner_id,
        q=query.get("q", ""),
        mime=query.get("type", ""),
        limit=PAGE_FILES,
        offset=int(query.get("offset", 0)),
    )
    live_count, trash_count = files.count_files(owner_id)
    deleted, place = parse_uuid(request.GET.get("deleted", "")), urlencode(query)
    context = {
        "page": page,
        "items": [
            {
                "file": file,
                "form": wrong
                if wrong and wrong.file_id == file.pk
                else FileRenameForm(file_id=file.pk, initial={"name": file.name, "place": place}),
            }
            for file in page.items
        ],
        "public": sharing.find_public_files(file.pk for file in page.items),
        "use": quotas.get_usage(owner_id),
        "live_count": live_count,
        "trash_count": trash_count,
        "kinds": [{"value": value, "label": label} for value, label in FILE_TYPE_CHOICES],
        "q": query.get("q", ""),
        "type": query.get("type", ""),
        "place": place,
        "newer": _build_page_query(query, page.offset - PAGE_FILES) if page.offset else None,
        "older": _build_page_query(query, page.offset + PAGE_FILES) if page.has_more else None,
        "first": page.offset + 1,
        "last": page.offset + len(page.items),
        "deleted": str(deleted) if deleted else "",
        "trash_days": settings.WORKSPACE_TRASH_DAYS,
    }
    return render(request, "copilot/files.html", context, status=wrong.status if wrong else 200)


@login_required
@never_cache
@require_GET
def show_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    """Show one file, as the artifacts panel does."""
    with not_found_as_404():
        file = files.get_file(get_request_user(request).pk, file_id)
    context = {
        "file": file,
        "render_max": settings.ARTIFACT_RENDER_MAX,
        "words": i18n.get_script_translations(),
    }
    return render(request, "copilot/file.html", context)


@login_required
@require_POST
def rename_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    form = FileRenameForm.from_request(request, file_id=file_id)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            file = files.rename_file(get_request_user(request).pk, file_id, form.cleaned_data["name"])
            messages.success(request, _("Renamed to %(name)s.") % {"name": file.name})
            return _redirect_to_list(form)
    return _render_files(request, form.get_place(), wrong=form)


@login_required
@require_POST
def delete_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    with not_found_as_404():
        files.trash_file(get_request_user(request).pk, file_id)
    return _redirect_to_list(FileListForm.from_request(request), deleted=str(file_id))


@login_required
@require_POST
def restore_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    with not_found_as_404():
        file = files.restore_file(get_request_user(request).pk, file_id)
    messages.success(request, _("%(name)s restored.") % {"name": file.name})
    return _redirect_to_list(FileListForm.from_request(request))


@login_required
@require_POST
def rescan_file(request: HttpRequest, file_id: UUID) -> HttpResponse:
    """Scan a file again after its scan failed."""
    with not_found_as_404():
        files.retry_scan(get_request_user(request).pk, file_id)
    return _redirect_to_list(FileListForm.from_request(request))


@login_required
@require_POST
def download_files_zip(request: HttpRequest) -> HttpResponseBase:
    form = FileSelectionForm.from_request(request)
    try:
        ids = form.cleaned_data["ids"] if form.is_valid() else []
        chosen, absent = files.get_chosen_files(get_request_user(request).pk, ids)
        return zip_stream.build_zip_response(request, chosen, title="workspace", absent=absent)
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
    return _redirect_to_list(form)


def _build_page_query(query: dict[str, str], offset: int) -> str:
    return urlencode(query | {"offset": str(max(offset, 0))})


def _redirect_to_list(form: FileListForm, **extra: str) -> HttpResponse:
    params = form.get_place() | extra
    return redirect(f"{reverse('files')}?{urlencode(params)}" if params else reverse("files"))


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
