"""The page of connected chats: what is linked, what it may do, and how to let it go."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from config.core.errors import InvalidRequest, NotFound, RequestRefused
from copilot.web.views.base import get_request_user
from linking import selectors
from linking.links import services as links
from linking.models import Platform, PlatformLink
from linking.models.fields import clean_name
from linking.selectors import get_bot_names, list_offered_bots
from linking.web.forms import PauseForm, ServerSettingsForm
from linking.web.link_confirmation import render_qr_code

PAGE_SIZE = 25


@login_required
@never_cache
@require_safe
def list_chats(request: HttpRequest) -> HttpResponse:
    return _render_chats(request)


def _render_chats(request: HttpRequest, *, wrong: ServerSettingsForm | None = None) -> HttpResponse:
    """Two lists, each with a page of its own in the address: the last link of the page before it."""
    user_id, seen = (
        get_request_user(request).pk,
        {name: request.GET.get(name, "") for name in ("people", "servers")},
    )
    try:
        people = selectors.list_user_links(user_id, cursor=seen["people"], limit=PAGE_SIZE)
        servers = selectors.list_server_links(user_id, cursor=seen["servers"], limit=PAGE_SIZE)
    except InvalidRequest as problem:
        raise Http404 from problem
    bots = get_bot_names(
        [
            *((row.platform, row.bot_account) for row in people.items),
            *((row.platform, row.bot_account) for row in servers.items),
        ]
    )
    context = {
        "people": [
            {
                "row": row,
                "platform": Platform(row.platform).label,
                "name": clean_name(row.display_name),
                "bot": bots[row.platform, row.bot_account],
            }
            for row in people.items
        ],
        "servers": [
            _build_link_context(link, bots[link.platform, link.bot_account], wrong) for link in servers.items
        ],
        "more_people": people.next_cursor,
        "more_servers": servers.next_cursor,
        "seen": seen,
        "bots": list_offered_bots(),
    }
    return render(request, "linking/chats.html", context, status=wrong.status if wrong else 200)


@login_required
@require_POST
def change_server(request: HttpRequest, link_id: UUID) -> HttpResponse:
    user_id, form = get_request_user(request).pk, ServerSettingsForm.from_request(request, link_id=link_id)
    if not selectors.owns_server_link(user_id, link_id):
        raise Http404
    if form.is_valid():
        with form.refusals_as_errors():
            links.update_server_link(user_id, link_id, form.build_settings())
            messages.success(request, _("Saved. It applies from the next message."))
            return redirect("connected_chats")
    return _render_chats(request, wrong=form)


@login_required
@require_POST
def pause_server(request: HttpRequest, link_id: UUID) -> HttpResponse:
    user_id, form = get_request_user(request).pk, PauseForm.from_request(request)
    pause = form.is_valid() and form.cleaned_data["pause"]
    return _perform_and_redirect(
        request,
        lambda: links.update_server_link(user_id, link_id, {"state": "paused" if pause else "active"}),
        _("Paused. The bot won't answer there.") if pause else _("Resumed. The bot answers there again."),
    )


@login_required
@require_POST
def unlink_server(request: HttpRequest, link_id: UUID) -> HttpResponse:
    user_id = get_request_user(request).pk
    return _perform_and_redirect(
        request,
        lambda: links.revoke_server_link(user_id, link_id),
        _("Disconnected. Your chats are kept."),
    )


@login_required
@require_POST
def unlink_user(request: HttpRequest, link_id: UUID) -> HttpResponse:
    user_id = get_request_user(request).pk
    return _perform_and_redirect(
        request,
        lambda: links.revoke_user_link(user_id, link_id),
        _("Disconnected. Your chats are kept."),
    )


@login_required
@require_safe
def show_bot_qr(request: HttpRequest, platform: str) -> HttpResponse:
    """Render the QR code that opens a platform's bot on a phone."""
    for bot in list_offered_bots():
        if bot.platform == platform:
            return render_qr_code(bot.url)
    raise Http404


def _build_link_context(link: PlatformLink, bot: str, wrong: ServerSettingsForm | None) -> dict[str, object]:
    return {
        "row": link,
        "bot": bot,
        "platform": Platform(link.platform).label,
        "name": clean_name(link.server_name) or _("Unnamed"),
        "usage": selectors.build_link_usage(link),
        "form": wrong if wrong and wrong.link_id == link.pk else ServerSettingsForm.from_link(link),
    }


def _perform_and_redirect(request: HttpRequest, act: Callable[[], object], said: str) -> HttpResponse:
    """Do it and say so, or say why not; either way the page is shown again."""
    try:
        act()
    except NotFound as problem:
        raise Http404 from problem
    except RequestRefused as problem:
        messages.error(request, problem.message)
    else:
        messages.success(request, said)
    return redirect("connected_chats")
