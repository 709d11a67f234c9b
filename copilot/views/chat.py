"""The landing page, and the chat as the server paints it."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from billing import queries as billing
from config.core.zones import find_zone
from copilot import dispatch, queries, searching, sessions, slashes, transcript, words
from copilot.commands import LIMITS, parse_send
from copilot.errors import Refused
from copilot.events import JSON, MessageView, SessionSnapshot
from copilot.permissions import UNRESTRICTED
from copilot.providers import catalogue
from copilot.views.acting import found, user_of
from copilot.workspace import quotas

UTC = ZoneInfo("UTC")
Context = dict[str, object]


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return redirect("chat") if request.user.is_authenticated else render(request, "copilot/home.html")


# --- the chat ----------------------------------------------------------------------------------------


@login_required
@never_cache
@require_GET
def chat(request: HttpRequest) -> HttpResponse:
    """A chat that does not exist yet: it begins with its first message."""
    return render(request, "copilot/chat.html", _frame(request) | {"draft": _example(request)})


@login_required
@never_cache
@require_GET
def chat_session(request: HttpRequest, session_id: UUID) -> HttpResponse:
    with found():
        session = queries.session_of(user_of(request).pk, session_id)
    return _painted(request, session.pk)


@login_required
@require_POST
def chat_start(request: HttpRequest) -> HttpResponse:
    """The first message without a script: the session is made only once the text is known to be good."""
    user = user_of(request)
    try:
        parse_send(
            _form(request), session_id=UUID(int=0), user_id=user.pk, origin="web", permissions=UNRESTRICTED
        )
        with sessions.begun(user.pk) as session:
            session_id = _submit(request, session.pk)
    except Refused as problem:
        context = _frame(request) | {
            "send_error": words.of_refusal(problem),
            "draft": request.POST.get("text", ""),
        }
        return render(request, "copilot/chat.html", context, status=problem.status)
    return redirect("chat_session", session_id)


@login_required
@require_POST
def chat_send(request: HttpRequest, session_id: UUID) -> HttpResponse:
    try:
        with found():
            session_id = _submit(request, session_id)
    except Refused as problem:
        return _painted(request, session_id, problem=problem)
    return redirect("chat_session", session_id)


def _submit(request: HttpRequest, session_id: UUID) -> UUID:
    """Where to look now: /new leads to another chat."""
    user = user_of(request)
    outcome = dispatch.hear(
        parse_send(
            _form(request), session_id=session_id, user_id=user.pk, origin="web", permissions=UNRESTRICTED
        )
    )
    if isinstance(outcome, dispatch.Obeyed):
        messages.success(request, outcome.message)
        return outcome.session_id
    if outcome.hint:
        messages.info(request, outcome.hint)
    return session_id


def _form(request: HttpRequest) -> dict[str, JSON]:
    """Browsers send line breaks as CR LF; a message has plain ones, whichever way it came."""
    fields: dict[str, JSON] = {"text": request.POST.get("text", "").replace("\r\n", "\n").strip()}
    for name in ("tier", "mode"):
        if value := request.POST.get(name):
            fields[name] = value
    return fields


def _painted(request: HttpRequest, session_id: UUID, *, problem: Refused | None = None) -> HttpResponse:
    """The same snapshot a socket would send, as HTML and as data for the script to go on from (E5)."""
    session = queries.session_of(user_of(request).pk, session_id)
    snapshot, cursor = queries.snapshot(session_id)
    shown, sought = _around(request, session_id, snapshot)
    context = _frame(request) | _conversation(shown) | {"session_id": str(session_id), "cursor": cursor}
    shaped = bool(session.instructions or session.personality_id or session.allowed_tools is not None)
    context |= {"at": sought, "frozen": shown is not snapshot, "shaped": shaped}
    context["imported"] = session.imported
    if before := _before(request):
        rows, has_older = queries.messages_page(session_id, before=before)
        context |= _older_page(rows, has_older=has_older)
    if problem is not None:
        context |= {"send_error": words.of_refusal(problem), "draft": request.POST.get("text", "")}
    return render(request, "copilot/chat.html", context, status=problem.status if problem else 200)


def _around(
    request: HttpRequest, session_id: UUID, snapshot: SessionSnapshot
) -> tuple[SessionSnapshot, str | None]:
    """The message somebody looked for: on the newest page, or on one of its own that stands still (W2.9)."""
    try:
        sought = UUID(request.GET.get("at", ""))
    except ValueError:
        return snapshot, None
    rows = [*snapshot.messages, *(snapshot.turn.messages if snapshot.turn else [])]
    if any(row.id == str(sought) for row in rows):
        return snapshot, str(sought)
    window = searching.around(session_id, sought)
    if window is None:
        return snapshot, None
    still = replace(
        snapshot, messages=window[0], has_older=window[1], turn=None, queue=[], questions=[], approvals=[]
    )
    return still, str(sought)


def _conversation(snapshot: SessionSnapshot) -> Context:
    rows = [*snapshot.messages, *(snapshot.turn.messages if snapshot.turn else [])]
    asked = {question.call_id for question in snapshot.questions}
    waiting = asked | {approval.call_id for approval in snapshot.approvals}
    running = snapshot.turn.id if snapshot.turn else None
    return {
        "title": snapshot.title,
        "items": transcript.items(rows, running_turn=running, waiting=waiting),
        "has_older": snapshot.has_older,
        "first_sequence": rows[0].sequence if rows else None,
        "running": snapshot.turn is not None,
        "snapshot": msgspec.to_builtins(snapshot),
    }


def _older_page(rows: list[MessageView], *, has_older: bool) -> Context:
    """For readers without a script; with one, older rows are fetched as data."""
    return {
        "items": transcript.items(rows, running_turn=None),
        "has_older": has_older,
        "first_sequence": rows[0].sequence if rows else None,
        "snapshot": None,
        "running": False,
        "older_page": True,
    }


def _before(request: HttpRequest) -> int | None:
    text = request.GET.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _frame(request: HttpRequest) -> Context:
    page = queries.sessions_page(user_of(request).pk)
    demo = not catalogue.has_real_model()
    return {
        "session_groups": transcript.by_day(page.items, _zone(request)),
        "sessions_cursor": page.next_cursor,
        "tiers": _tiers(user_of(request).pk),
        "demo": demo,
        "examples": _examples(demo=demo),
        "tries": _tries() if demo else [],
        "commands": _commands(),
        "words": words.of_scripts(),
        "render_max": settings.ARTIFACT_RENDER_MAX,
        "message_characters": settings.MESSAGE_CHARACTERS,
        **_attaching(user_of(request).pk),
    }


def _attaching(user_id: int) -> Context:
    """What may go with a message, said before anything is sent (W2.8)."""
    most = quotas.quota_of(user_id).file_bytes
    limits = {"count": LIMITS.attachments, "size": most // quotas.MB}
    return {"file_max": most, "attach_limits": _("up to %(count)d files, %(size)d MB each") % limits}


def _tiers(user_id: int) -> list[dict[str, str | bool]]:
    """What the picker offers: the plan's; tiers that all lead to the demo are one choice, by its name (A4.2, A4.6)."""
    allowed = billing.plan(user_id).model_tiers if billing.restricts_models() else ()
    tiers = {name: entry for name, entry in catalogue.tiers().items() if not allowed or name in allowed}
    if "standard" in tiers and all(entry.demo for entry in tiers.values()):
        return [{"value": "standard", "label": tiers["standard"].name, "selected": True}]
    names = {"standard": _("Standard"), "advanced": _("Advanced"), "small": _("Small")}
    return [
        {"value": tier, "label": f"{names.get(tier, tier)} · {entry.name}", "selected": tier == "standard"}
        for tier, entry in tiers.items()
    ]


def _commands() -> list[dict[str, str]]:
    """What the composer's menu offers, in the reader's language."""
    return [{"name": one.name, "takes": one.takes, "does": _(one.does)} for one in slashes.COMMANDS]


def _examples(*, demo: bool) -> list[dict[str, str]]:
    """Four first things to say; the demo's are those its script knows."""
    if demo:
        return [
            {"title": _("A tool"), "text": _("Use a tool and tell me the time.")},
            {"title": _("An approval"), "text": _("Delete a file, but let me approve it first.")},
            {"title": _("An artifact"), "text": _("Make an artifact that I can look at.")},
            {"title": _("Steering"), "text": _("Give me a long answer: I send more while you write.")},
        ]
    return [
        {"title": _("Explain"), "text": _("Explain how rainbows form, with a small table of the colours.")},
        {"title": _("Write"), "text": _("Write a short, polite email that moves a meeting to Thursday.")},
        {
            "title": _("Code"),
            "text": _("Write a Python function that finds duplicate files, and explain it."),
        },
        {"title": _("Plan"), "text": _("Plan a weekend in Hamburg and keep a todo list while you do it.")},
    ]


def _example(request: HttpRequest) -> str:
    """The text of an example that was clicked before a script ran, or without one; never a text from the address."""
    texts = [one["text"] for one in _examples(demo=not catalogue.has_real_model())]
    numbered = {str(number): text for number, text in enumerate(texts, 1)}
    return numbered.get(request.GET.get("example", ""), "")


def _tries() -> list[dict[str, str]]:
    """What the demo's script shows off, one part each (W1.2)."""
    return [
        {"name": _("streaming"), "text": _("Give me a long answer that I can stop or steer.")},
        {"name": _("queueing"), "text": _("Give me a long answer: I send more while you write.")},
        {"name": _("reasoning"), "text": _("Think aloud before you answer.")},
        {"name": _("tools"), "text": _("Use a tool and make a todo list.")},
        {"name": _("approval"), "text": _("Delete a file, but let me approve it first.")},
        {"name": _("an artifact"), "text": _("Make an artifact that I can look at.")},
        {"name": _("a question"), "text": _("Ask me something before you go on.")},
    ]


def _zone(request: HttpRequest) -> ZoneInfo:
    """The viewer's time zone as their browser told us last time; anything odd is UTC."""
    return find_zone(unquote(request.COOKIES.get("zone", "")[:200])) or UTC
