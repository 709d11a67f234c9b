"""The page of one's files: look, find, rename, delete, undo, take along (W3, S3)."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot import words
from copilot.commands import as_uuid
from copilot.errors import Refused
from copilot.views.acting import found, user_of
from copilot.workspace import files, quotas, shares, zips

PAGE_FILES = 25
KINDS = (
    ("image", gettext_lazy("Images")),
    ("text", gettext_lazy("Text and code")),
    ("application/pdf", gettext_lazy("PDF")),
    ("audio", gettext_lazy("Audio")),
    ("video", gettext_lazy("Video")),
    ("application", gettext_lazy("Data and other")),
)
_PLACE = ("q", "type", "offset")  # what is looked at, and where


@login_required
@never_cache
@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    owner_id, asked = user_of(request).pk, _place(request.GET)
    page = files.page(
        owner_id,
        q=asked.get("q", ""),
        mime=asked.get("type", ""),
        limit=PAGE_FILES,
        offset=int(asked.get("offset", 0)),
    )
    deleted = as_uuid(request.GET.get("deleted", ""))
    context = {
        "page": page,
        "public": shares.public_among(file.pk for file in page.items),
        "use": quotas.usage(owner_id),
        "kinds": [{"value": value, "label": label} for value, label in KINDS],
        "q": asked.get("q", ""),
        "type": asked.get("type", ""),
        "place": urlencode(asked),
        "newer": _step(asked, page.offset - PAGE_FILES) if page.offset else None,
        "older": _step(asked, page.offset + PAGE_FILES) if page.has_more else None,
        "first": page.offset + 1,
        "last": page.offset + len(page.items),
        "deleted": str(deleted) if deleted else "",
        "trash_days": settings.WORKSPACE_TRASH_DAYS,
    }
    return render(request, "copilot/files.html", context)


@login_required
@never_cache
@require_GET
def one(request: HttpRequest, file_id: UUID) -> HttpResponse:
    """A file by itself, shown as the panel shows it."""
    with found():
        file = files.get(user_of(request).pk, file_id)
    context = {"file": file, "render_max": settings.ARTIFACT_RENDER_MAX, "words": words.of_scripts()}
    return render(request, "copilot/file.html", context)


@login_required
@require_POST
def rename(request: HttpRequest, file_id: UUID) -> HttpResponse:
    try:
        with found():
            file = files.rename(user_of(request).pk, file_id, request.POST.get("name", "")[:1000])
    except Refused as problem:
        messages.error(request, words.of_refusal(problem))
    else:
        messages.success(request, _("Renamed to %(name)s.") % {"name": file.name})
    return _back(request)


@login_required
@require_POST
def delete(request: HttpRequest, file_id: UUID) -> HttpResponse:
    with found():
        files.delete(user_of(request).pk, file_id)
    return _back(request, deleted=str(file_id))


@login_required
@require_POST
def restore(request: HttpRequest, file_id: UUID) -> HttpResponse:
    with found():
        file = files.restore(user_of(request).pk, file_id)
    messages.success(request, _("%(name)s is back.") % {"name": file.name})
    return _back(request)


@login_required
@require_POST
def scan(request: HttpRequest, file_id: UUID) -> HttpResponse:
    """Again, where it was given up."""
    with found():
        files.scan_again(user_of(request).pk, file_id)
    return _back(request)


@login_required
@require_POST
def archive(request: HttpRequest) -> HttpResponseBase:
    """The chosen files as one download (S13)."""
    try:
        chosen, absent = files.chosen(user_of(request).pk, request.POST.getlist("ids")[: files.PAGE_FILES])
        return zips.respond(request, chosen, title="workspace", absent=absent)
    except Refused as problem:
        messages.error(request, words.of_refusal(problem))
    return _back(request)


def _place(query: QueryDict) -> dict[str, str]:
    """The parts of an address that say what is looked at; anything odd is left out."""
    place = {name: query.get(name, "")[:255].replace("\x00", "") for name in _PLACE}
    if not (place["offset"].isascii() and place["offset"].isdigit() and len(place["offset"]) <= 5):
        del place["offset"]
    return {name: value for name, value in place.items() if value}


def _step(asked: dict[str, str], offset: int) -> str:
    return urlencode(asked | {"offset": str(max(offset, 0))})


def _back(request: HttpRequest, **more: str) -> HttpResponse:
    place = _place(QueryDict(request.POST.get("place", "")[:1000])) | more
    return redirect(f"{reverse('files')}?{urlencode(place)}" if place else reverse("files"))
