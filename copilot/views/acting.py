"""What every page does the same way: who asks, what is not there, and an act that is done or refused aloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from copilot import words
from copilot.errors import NotFound, Refused


def user_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # login_required let nobody else in
    return request.user


@contextmanager
def found() -> Iterator[None]:
    """What is not there is a page that is not there."""
    try:
        yield
    except NotFound as problem:
        raise Http404 from problem


def done(request: HttpRequest, act: Callable[[], object], said: str, *, then: str) -> HttpResponse:
    """Do it and say so, or say why not; either way the page is shown again."""
    try:
        with found():
            act()
    except Refused as problem:
        messages.error(request, words.of_refusal(problem))
    else:
        messages.success(request, said)
    return redirect(then)


LONGEST_OFFSET = 5  # digits


def offset_of(request: HttpRequest) -> int:
    """Where in a list a page begins; anything odd is its start."""
    text = request.GET.get("offset", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_OFFSET else 0
