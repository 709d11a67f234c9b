"""Helpers for all pages: the signed-in user, 404s, actions that redirect, and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from config.core.errors import NotFound, RequestRefused
from copilot.web import i18n

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


def get_request_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # login_required admits nobody else
    return request.user


@contextmanager
def not_found_as_404() -> Iterator[None]:
    try:
        yield
    except NotFound as problem:
        raise Http404 from problem


def perform_and_redirect(
    request: HttpRequest, action: Callable[[], object], message: str, *, then: str
) -> HttpResponse:
    """Perform an action, report success or why it was refused, and redirect either way."""
    try:
        with not_found_as_404():
            action()
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
    else:
        messages.success(request, message)
    return redirect_to_list(request, then)


def build_action_view(
    action: Callable[[int, UUID], object], message: StrOrPromise, *, then: str
) -> Callable[..., HttpResponse]:
    """Build the view of a button that acts on one of the user's rows, named in the URL, and shows their list again."""

    @login_required
    @require_POST
    def perform_action(request: HttpRequest, **row: UUID) -> HttpResponse:
        [row_id] = row.values()
        owner_id = get_request_user(request).pk
        return perform_and_redirect(request, lambda: action(owner_id, row_id), str(message), then=then)

    return perform_action


MAX_OFFSET_DIGITS = 5
ROWS_PER_PAGE = 25


def parse_offset(request: HttpRequest) -> int:
    """Return the offset into a list; anything invalid is 0."""
    text = request.GET.get("offset", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS else 0


def build_page_links(offset: int, *, has_more: bool) -> dict[str, int | None]:
    return {
        "offset": offset,
        "newer": max(offset - ROWS_PER_PAGE, 0) if offset else None,
        "older": offset + ROWS_PER_PAGE if has_more else None,
    }


def redirect_to_list(request: HttpRequest, name: str) -> HttpResponse:
    """Redirect to the page of a list that the request names by its offset."""
    offset = parse_offset(request)
    return redirect(f"{reverse(name)}?offset={offset}" if offset else name)
