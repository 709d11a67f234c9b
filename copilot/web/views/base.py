"""What every page does the same way: who asks, what is not there, and an act that is done or refused aloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from config.core.errors import NotFound, RequestRefused
from copilot.web import i18n


def get_request_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # login_required let nobody else in
    return request.user


@contextmanager
def not_found_as_404() -> Iterator[None]:
    """What is not there is a page that is not there."""
    try:
        yield
    except NotFound as problem:
        raise Http404 from problem


def perform_and_redirect(
    request: HttpRequest, act: Callable[[], object], said: str, *, then: str
) -> HttpResponse:
    """Do it and say so, or say why not; either way the page is shown again."""
    try:
        with not_found_as_404():
            act()
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
    else:
        messages.success(request, said)
    return redirect(then)


MAX_OFFSET_DIGITS = 5  # digits


def parse_offset(request: HttpRequest) -> int:
    """Where in a list a page begins; anything odd is its start."""
    text = request.GET.get("offset", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS else 0
