"""The landing page, the chat page as the server renders it, and the archived and deleted chats."""

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
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from billing.selectors import plan_status
from config.core.errors import InvalidRequest
from config.core.text import find_time_zone
from copilot.chat import search, sessions, slash_commands
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import REQUEST_LIMITS, SendMessage, parse_message
from copilot.chat.permissions import UNRESTRICTED
from copilot.files import quotas
from copilot.files import services as files
from copilot.models import Session
from copilot.providers import catalogue
from copilot.realtime.events import SessionSnapshot
from copilot.realtime.payloads import MessagePayload
from copilot.web import i18n, transcript
from copilot.web.forms import MessageForm
from copilot.web.views.base import (
    ROWS_PER_PAGE,
    build_action_view,
    build_page_links,
    get_request_user,
    not_found_as_404,
    parse_offset,
)

UTC = ZoneInfo("UTC")
Context = dict[str, object]


@require_GET
def show_home(request: HttpRequest) -> HttpResponse:
    return redirect("chat") if request.user.is_authenticated else render(request, "copilot/home.html")


# --- The chat ---


@login_required
@never_cache
@require_GET
def show_new_chat(request: HttpRequest) -> HttpResponse:
    """Show a chat that does not exist yet; its first message creates it."""
    return render(
        request, "copilot/chat.html", _build_page_context(request) | {"draft": _get_example_text(request)}
    )


@login_required
@never_cache
@require_GET
def show_chat(request: HttpRequest, session_id: UUID) -> HttpResponse:
    with not_found_as_404():
        session = chat_selectors.get_session(get_request_user(request).pk, session_id)
    return _render_chat(request, session.pk)


@login_required
@require_POST
def start_chat(request: HttpRequest) -> HttpResponse:
    """Send the first message without scripts. The session is created only once the text is valid."""
    user, form = get_request_user(request), MessageForm.from_request(request)
    if form.is_valid():
        with form.refusals_as_errors():
            _parse_message(user.pk, form, UUID(int=0))
            with sessions.create_session_for_first_message(user.pk) as session:
                session_id = _submit_input(request, form, session.pk)
            return redirect("chat_session", session_id)
    context = _build_page_context(request) | _build_refusal_context(form)
    return render(request, "copilot/chat.html", context, status=form.status)


@login_required
@require_POST
def send_chat_message(request: HttpRequest, session_id: UUID) -> HttpResponse:
    form = MessageForm.from_request(request)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            return redirect("chat_session", _submit_input(request, form, session_id))
    with not_found_as_404():
        return _render_chat(request, session_id, form=form)


def _submit_input(request: HttpRequest, form: MessageForm, session_id: UUID) -> UUID:
    """Submit the message and return the session to show: `/new` leads to another one."""
    outcome = slash_commands.submit_input(_parse_message(get_request_user(request).pk, form, session_id))
    if isinstance(outcome, slash_commands.CommandResult):
        messages.success(request, outcome.message)
        return outcome.session_id
    if outcome.hint:
        messages.info(request, outcome.hint)
    return session_id


def _parse_message(user_id: int, form: MessageForm, session_id: UUID) -> SendMessage:
    return parse_message(
        form.build_fields(), session_id=session_id, user_id=user_id, origin="web", permissions=UNRESTRICTED
    )


def _build_refusal_context(form: MessageForm) -> Context:
    problems = [str(text) for texts in form.errors.values() for text in texts]
    return {"send_error": " ".join(problems), "draft": form["text"].value() or ""}


def _render_chat(request: HttpRequest, session_id: UUID, *, form: MessageForm | None = None) -> HttpResponse:
    """Render the snapshot that a socket would send, as HTML and as data for the script to continue from."""
    session = chat_selectors.get_session(get_request_user(request).pk, session_id)
    snapshot, cursor = chat_selectors.build_snapshot(session_id)
    shown, message_id = _focus_on_message(request, session_id, snapshot)
    context = (
        _build_page_context(request)
        | _build_conversation_context(shown, owner_id=session.owner_id)
        | {"session_id": str(session_id), "cursor": cursor}
    )
    has_settings = bool(session.instructions or session.personality_id or session.allowed_tools is not None)
    context |= {"at": message_id, "frozen": shown is not snapshot, "shaped": has_settings}
    context["imported"] = session.imported
    context["parent"] = _find_parent_chat(session)
    if session.built_agent is not None:
        context |= {"built_agent": session.built_agent, "examples": _list_builder_prompts()}
    if before := _parse_before(request):
        rows, has_older = chat_selectors.list_messages_page(session_id, before=before)
        context |= _build_older_page_context(rows, has_older=has_older, owner_id=session.owner_id)
    if form is not None:
        context |= _build_refusal_context(form)
    return render(request, "copilot/chat.html", context, status=form.status if form else 200)


def _find_parent_chat(session: Session) -> Session | None:
    """Find the chat that started this one, if its owner can still open it."""
    if session.parent_id is None:
        return None
    return Session.objects.visible_to(session.owner_id).filter(pk=session.parent_id).only("title").first()


def _focus_on_message(
    request: HttpRequest, session_id: UUID, snapshot: SessionSnapshot
) -> tuple[SessionSnapshot, str | None]:
    """Find the message somebody searched for: on the newest page, or on a page of its own that is not live."""
    try:
        message_id = UUID(request.GET.get("at", ""))
    except ValueError:
        return snapshot, None
    rows = [*snapshot.messages, *(snapshot.turn.messages if snapshot.turn else [])]
    if any(row.id == str(message_id) for row in rows):
        return snapshot, str(message_id)
    window = search.list_messages_around(session_id, message_id)
    if window is None:
        return snapshot, None
    frozen = replace(
        snapshot, messages=window[0], has_older=window[1], turn=None, queue=[], questions=[], approvals=[]
    )
    return frozen, str(message_id)


def _build_conversation_context(snapshot: SessionSnapshot, *, owner_id: int) -> Context:
    rows = [*snapshot.messages, *(snapshot.turn.messages if snapshot.turn else [])]
    question_call_ids = {question.call_id for question in snapshot.questions}
    waiting = question_call_ids | {approval.call_id for approval in snapshot.approvals}
    running = snapshot.turn.id if snapshot.turn else None
    return {
        "title": snapshot.title,
        "items": transcript.build_items(
            rows, running_turn=running, waiting=waiting, file_names=_get_file_names(owner_id, rows)
        ),
        "has_older": snapshot.has_older,
        "first_sequence": rows[0].sequence if rows else None,
        "running": snapshot.turn is not None,
        "snapshot": msgspec.to_builtins(snapshot),
    }


def _get_file_names(owner_id: int, rows: list[MessagePayload]) -> dict[str, str]:
    file_ids = transcript.list_named_files(rows)
    return files.get_file_names(owner_id, file_ids) if file_ids else {}


def _build_older_page_context(rows: list[MessagePayload], *, has_older: bool, owner_id: int) -> Context:
    """Build an older page for readers without scripts; scripts fetch older rows as data."""
    return {
        "items": transcript.build_items(rows, running_turn=None, file_names=_get_file_names(owner_id, rows)),
        "has_older": has_older,
        "first_sequence": rows[0].sequence if rows else None,
        "snapshot": None,
        "running": False,
        "older_page": True,
    }


def _parse_before(request: HttpRequest) -> int | None:
    text = request.GET.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _build_page_context(request: HttpRequest) -> Context:
    page = chat_selectors.list_sessions_page(get_request_user(request).pk)
    demo = not catalogue.has_real_model()
    return {
        "session_groups": transcript.group_sessions_by_day(page.items, _get_viewer_timezone(request)),
        "sessions_cursor": page.next_cursor,
        "tiers": _list_tier_choices(get_request_user(request).pk),
        "demo": demo,
        "examples": _list_example_prompts(demo=demo),
        "tries": _list_demo_prompts() if demo else [],
        "commands": _list_slash_commands(),
        "words": i18n.get_script_translations(),
        "render_max": settings.ARTIFACT_RENDER_MAX,
        "message_characters": settings.MESSAGE_CHARACTERS,
        **_build_attachment_context(get_request_user(request).pk),
    }


def _build_attachment_context(user_id: int) -> Context:
    max_bytes = quotas.get_quota(user_id).file_bytes
    limits = {"count": REQUEST_LIMITS.attachments, "size": max_bytes // quotas.MB}
    return {"file_max": max_bytes, "attach_limits": _("up to %(count)d files, %(size)d MB each") % limits}


def _list_tier_choices(user_id: int) -> list[dict[str, str | bool]]:
    """List the tiers of the plan; if all of them lead to the demo model, they are one choice by its name."""
    allowed = plan_status.get_plan_terms(user_id).model_tiers if plan_status.restricts_models() else ()
    tiers = {
        name: entry for name, entry in catalogue.get_tier_entries().items() if not allowed or name in allowed
    }
    if "standard" in tiers and all(entry.demo for entry in tiers.values()):
        return [{"value": "standard", "label": tiers["standard"].name, "selected": True}]
    names = {"standard": _("Standard"), "advanced": _("Advanced"), "small": _("Small")}
    return [
        {"value": tier, "label": f"{names.get(tier, tier)} · {entry.name}", "selected": tier == "standard"}
        for tier, entry in tiers.items()
    ]


def _list_slash_commands() -> list[dict[str, str]]:
    return [
        {"name": command.name, "takes": command.takes, "does": _(command.does)}
        for command in slash_commands.SLASH_COMMANDS
    ]


def _list_example_prompts(*, demo: bool) -> list[dict[str, str]]:
    """List four first messages; those of the demo are known to its script."""
    if demo:
        return [
            {"title": _("A tool"), "text": _("Use a tool and tell me the time.")},
            {"title": _("An approval"), "text": _("Delete a file, but let me approve it first.")},
            {"title": _("An artifact"), "text": _("Make an artifact I can look at.")},
            {"title": _("Steering"), "text": _("Give me a long answer while I send more messages.")},
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


def _list_builder_prompts() -> list[dict[str, str]]:
    """List first messages for the chat that edits an agent."""
    return [
        {"title": _("Explain"), "text": _("What does this agent do, and what could be better?")},
        {"title": _("Instructions"), "text": _("Make the instructions shorter and clearer.")},
        {"title": _("Inputs"), "text": _("Let the agent ask for an input before it starts.")},
        {"title": _("Tools"), "text": _("Which tools does this agent need? Allow only those.")},
    ]


def _get_example_text(request: HttpRequest) -> str:
    """Return the text of an example that was clicked before scripts ran, never a text from the URL."""
    texts = [prompt["text"] for prompt in _list_example_prompts(demo=not catalogue.has_real_model())]
    texts_by_number = {str(number): text for number, text in enumerate(texts, 1)}
    return texts_by_number.get(request.GET.get("example", ""), "")


def _list_demo_prompts() -> list[dict[str, str]]:
    """List messages that each show one feature of the demo."""
    return [
        {"name": _("streaming"), "text": _("Give me a long answer that I can stop or steer.")},
        {"name": _("queueing"), "text": _("Give me a long answer while I send more messages.")},
        {"name": _("reasoning"), "text": _("Think aloud before you answer.")},
        {"name": _("tools"), "text": _("Use a tool and make a todo list.")},
        {"name": _("approval"), "text": _("Delete a file, but let me approve it first.")},
        {"name": _("an artifact"), "text": _("Make an artifact I can look at.")},
        {"name": _("a question"), "text": _("Ask me something before you go on.")},
    ]


def _get_viewer_timezone(request: HttpRequest) -> ZoneInfo:
    """Return the time zone from the browser's cookie; anything invalid is UTC."""
    return find_time_zone(unquote(request.COOKIES.get("zone", "")[:200])) or UTC


# --- Archived chats ---


@login_required
@never_cache
@require_GET
def list_archived_chats(request: HttpRequest) -> HttpResponse:
    try:
        page = chat_selectors.list_sessions_page(
            get_request_user(request).pk, archived=True, cursor=request.GET.get("cursor", "")[:500] or None
        )
    except InvalidRequest as problem:
        messages.error(request, i18n.translate_refusal(problem))
        return redirect("archived")
    return render(request, "copilot/archived.html", {"page": page})


unarchive_chat = build_action_view(
    lambda owner_id, session_id: sessions.update_session(owner_id, session_id, archived=False),
    gettext_lazy("Chat restored."),
    then="archived",
)


# --- Trash ---


@login_required
@never_cache
@require_GET
def list_deleted_chats(request: HttpRequest) -> HttpResponse:
    offset = parse_offset(request)
    deleted = chat_selectors.list_deleted_sessions(get_request_user(request).pk)
    found = list(deleted[offset : offset + ROWS_PER_PAGE + 1])
    context = {
        "chats": found[:ROWS_PER_PAGE],
        "days": settings.SESSION_TRASH_DAYS,
        **build_page_links(offset, has_more=len(found) > ROWS_PER_PAGE),
    }
    return render(request, "copilot/trash.html", context)


restore_chat = build_action_view(sessions.restore_session, gettext_lazy("Chat restored."), then="trash")
