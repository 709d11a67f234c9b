"""Pages as the server paints them (E5, W1)."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

from copilot.accounts import api_keys
from copilot.agents import services as agents
from copilot.chat import sessions
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Message, Session
from copilot.schedules import services as schedules
from tests.support import factories
from tests.support.paths import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

SCRIPTS = ROOT / "static" / "js"


@pytest.fixture
def ada(client: Client) -> Client:
    return factories.sign_in(client, factories.ada())


def embedded(html: str) -> dict[str, object]:
    found = re.search(r'<script id="snapshot" type="application/json">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found.group(1))


def test_a_visitor_sees_the_landing_page_and_is_sent_to_the_login_from_a_chat(client: Client) -> None:
    """W1.1."""
    assert "Sign in" in client.get("/").content.decode()
    answer = client.get("/chat/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")


def test_home_leads_a_known_person_to_the_chat(ada: Client) -> None:
    assert ada.get("/")["Location"] == "/chat/"


@pytest.mark.parametrize(
    ("rights", "found"),
    [
        ([], []),
        (["is_staff"], ["/admin/"]),
        (["is_staff", "is_superuser"], ["/admin/", "/admin/diagnostics/"]),
    ],
)
def test_staff_find_the_dashboards_they_may_see_in_their_menu(
    ada: Client, rights: list[str], found: list[str]
) -> None:
    """W3"""
    User.objects.filter(pk=factories.ada().pk).update(**dict.fromkeys(rights, True))
    assert re.findall(r'href="(/admin/[^"]*)"', ada.get("/chat/").content.decode()) == found


def test_an_empty_chat_offers_four_prompts_and_names_the_demo(ada: Client) -> None:
    """W1.2, W1.3, A4.6."""
    html = ada.get("/chat/").content.decode()
    assert html.count('data-act="example"') == 4
    assert 'href="/chat/?example=2"' in html
    assert "Demo, scripted, no AI</option>" in html


@pytest.mark.parametrize(
    ("number", "text"), [("1", "Use a tool"), ("5", ""), ("0", ""), ("-1", ""), ("x", "")]
)
def test_an_example_clicked_without_a_script_is_ready_to_be_sent(ada: Client, number: str, text: str) -> None:
    """W1.3: by its number, so that no address puts words into the box"""
    html = ada.get("/chat/", {"example": number}).content.decode()
    assert f"autofocus>{text}" in html
    assert text or "autofocus></textarea>" in html


def test_a_chat_is_rendered_from_the_snapshot_that_the_script_continues_from(ada: Client) -> None:
    """E5: the rows as HTML, the same rows as data, and the cursor behind them."""
    session = factories.session(title="Ships")
    asked = factories.message(session, content="What is a **helm**?")
    factories.message(session, "assistant", content="A *wheel*.")
    html = ada.get(f"/chat/{session.pk}/").content.decode()
    assert f'data-row="{asked.pk}"' in html
    assert "What is a **helm**?" in html  # what people write is shown as they wrote it
    assert "<em>wheel</em>" in html
    assert re.search(r'data-cursor="\d+-\d+"', html)
    rows = embedded(html)["messages"]
    assert isinstance(rows, list)
    assert [one["content"] for one in rows] == ["What is a **helm**?", "A *wheel*."]


def test_no_text_can_break_out_of_the_embedded_data(ada: Client) -> None:
    session = factories.session()
    factories.message(session, content="</script><script>alert(1)</script>")
    html = ada.get(f"/chat/{session.pk}/").content.decode()
    assert "<script>alert" not in html
    assert "</script>" in str(embedded(html)["messages"])


@pytest.mark.parametrize("path", ["/chat/{}/", "/chat/{}/send/"])
def test_a_foreign_chat_looks_missing(ada: Client, path: str) -> None:
    foreign = factories.session(factories.bob())
    for one in (foreign.pk, uuid4()):
        method = ada.post if "send" in path else ada.get
        assert method(path.format(one), {"text": "hi"}).status_code == 404


def test_a_plain_form_starts_a_chat_with_its_message(ada: Client) -> None:
    """E5."""
    answer = ada.post("/chat/start/", {"text": "Hello\r\nthere", "tier": "standard", "mode": "fast"})
    session = Session.objects.get(owner=factories.ada())
    assert answer["Location"] == f"/chat/{session.pk}/"
    assert Message.objects.get(session=session).content == "Hello\nthere"


def test_a_refused_form_keeps_the_text_and_makes_no_chat(ada: Client) -> None:
    answer = ada.post("/chat/start/", {"text": "x" * 64_001})
    assert answer.status_code == 400
    assert "64,000 characters" in answer.content.decode()
    assert "x" * 64_001 in answer.content.decode()
    assert not Session.objects.exists()


def test_a_second_message_by_form_waits_behind_the_turn(ada: Client) -> None:
    """T3.4 through the page's endpoint."""
    ada.post("/chat/start/", {"text": "first"})
    session = Session.objects.get()
    ada.post(f"/chat/{session.pk}/send/", {"text": "second"})
    html = ada.get(f"/chat/{session.pk}/").content.decode()
    assert "second" in html.split('id="queue"')[1].split("</ul>")[0]
    assert '<meta http-equiv="refresh"' in html


def test_older_pages_can_be_read_without_a_script(ada: Client) -> None:
    session = factories.session()
    for number in range(60):
        factories.message(session, content=f"line {number};")
    newest = ada.get(f"/chat/{session.pk}/").content.decode()
    assert "line 9;" not in newest
    before = re.search(r'href="\?before=(\d+)"', newest)
    assert before
    assert "line 9;" in ada.get(f"/chat/{session.pk}/?before={before.group(1)}").content.decode()
    assert ada.get(f"/chat/{session.pk}/?before=²").status_code == 200


def test_the_policy_allows_no_inline_script_style_or_third_party(ada: Client) -> None:
    """W2.1, W4.3."""
    session = factories.session()
    factories.message(session, "assistant", content="```python\nx = 1\n```")
    for path in ("/chat/", f"/chat/{session.pk}/", "/settings/keys/"):
        answer = ada.get(path)
        policy, html = answer["Content-Security-Policy"], answer.content.decode()
        assert "unsafe" not in policy
        assert re.findall(r"<script(?![^>]*(?: src=| type=\"application/json\"))", html) == []
        assert not re.search(r"\sstyle=|<style|\son\w+=\"|(?:src|href)=\"https?:", html)


def test_the_chat_asks_for_every_module_its_script_imports(ada: Client) -> None:
    """One round trip instead of a chain: each import of our own is announced in the page."""
    html = ada.get("/chat/").content.decode()
    announced = set(re.findall(r'href="/static/((?:js|vendor)/[\w./]+)\.js"', html))
    wanted: set[str] = {"js/chat/chat_page"}
    seen: set[str] = set()
    while wanted - seen:
        name = (wanted - seen).pop()
        seen.add(name)
        source = Path(str(finders.find(f"{name}.js"))).read_text()
        for path in re.findall(r'^import [^"]*"(\.[^"]+)\.js";', source, re.M):
            wanted.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), path)))
    assert announced == wanted - {"js/chat/chat_page"}


def test_the_chat_is_painted_before_its_scripts_are_fetched(ada: Client) -> None:
    """W4.3: the page itself asks for four styles and one small script; the rest waits in a template behind the first paint"""
    html = ada.get("/chat/").content.decode()
    at_once = re.sub(r"<template.*?</template>", "", html, flags=re.S)
    asked = re.findall(r'<(?:script|link)[^>]* (?:src|href)="/static/([\w./]+)"', at_once)
    names = ("lib/base", "chat/chat", "lib/transcript", "chat/composer")
    styles = ["images/logo.svg", *(f"css/{name}.css" for name in names)]
    assert asked == [*styles, "js/chat/loader.js"]
    assert "js/chat/chat_page.js" in html
    assert len(Path(str(finders.find("js/chat/loader.js"))).read_bytes()) < 1500


def test_a_key_is_made_shown_once_and_revoked(ada: Client) -> None:
    html = ada.post("/settings/keys/", {"name": "cli", "scopes": ["read"]}).content.decode()
    assert re.search(r"ph_user_\w{10}_[\w-]{43}", html)
    listed = ada.get("/settings/keys/").content.decode()
    assert not re.search(r"ph_user_\w{10}_[\w-]{43}", listed)
    key = factories.ada().api_keys.get()
    assert ada.post(f"/settings/keys/{key.pk}/revoke/").status_code == 302
    assert "No keys yet" in ada.get("/settings/keys/").content.decode()


@pytest.mark.parametrize(
    ("path", "label", "how"),
    [
        ("/agents/", "Agents", "page"),
        ("/agents/new/", "Agents", "true"),
        ("/settings/account/delete/", "Your data", "true"),
        ("/settings/keys/", "API keys", "page"),
    ],
)
def test_one_tab_says_where_one_is(ada: Client, path: str, label: str, how: str) -> None:
    """W4.2: also on the pages below it"""
    tabs = ada.get(path).content.decode().partition('class="tabs"')[2].partition("</nav>")[0]
    assert re.findall(r'aria-current="(\w+)">([^<]+)<', tabs) == [(how, label)]


def test_many_keys_come_in_pages(ada: Client) -> None:
    """W3"""
    for number in range(26):
        api_keys.create_api_key(factories.ada(), name=f"program {number}")
    first, second = (ada.get(f"/settings/keys/{place}").content.decode() for place in ("", "?offset=25"))
    assert (first.count("/revoke/"), second.count("/revoke/")) == (25, 1)
    assert 'href="?offset=25"' in first
    assert "program 25" in first
    assert "program 0" in second


def test_a_key_without_a_scope_or_of_somebody_else_is_refused(ada: Client) -> None:
    assert "at least one" in ada.post("/settings/keys/", {"name": "cli"}).content.decode()
    assert ada.post(f"/settings/keys/{uuid4()}/revoke/").status_code == 404


@pytest.mark.parametrize("path", ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/"])
def test_account_pages_wear_our_design(client: Client, path: str) -> None:
    html = client.get(path).content.decode()
    assert 'class="page-head"' in html
    assert 'class="button primary"' in html
    assert "style=" not in html


@pytest.mark.parametrize(
    ("cookie", "works"), [("Europe/Berlin", True), ("../../etc/passwd", True), ("%00", True)]
)
def test_a_malformed_time_zone_cookie_is_ignored(ada: Client, cookie: str, works: bool) -> None:
    factories.session()
    ada.cookies["zone"] = cookie
    assert (ada.get("/chat/").status_code == 200) is works


def test_commands_work_without_a_script_and_say_what_they_did(ada: Client) -> None:
    """A30.2, E5."""
    session = factories.session()
    answer = ada.post(f"/chat/{session.pk}/send/", {"text": "/rename Two boats"}, follow=True)
    assert "Renamed to Two boats." in answer.content.decode()
    moved = ada.post(f"/chat/{session.pk}/send/", {"text": "/new"})
    assert moved["Location"] not in ("", f"/chat/{session.pk}/")
    refused = ada.post(f"/chat/{session.pk}/send/", {"text": "/undo"})
    assert (refused.status_code, "nothing to undo" in refused.content.decode()) == (409, True)


def test_versions_are_painted_with_their_number(ada: Client) -> None:
    """W2.7."""
    session = factories.session()
    first = factories.message(session, content="One")
    second = factories.message(session, content="Uno")
    Message.objects.filter(pk=first.pk).update(
        version_of=first.pk, hidden="older_branch", hidden_with_version=first.pk
    )
    Message.objects.filter(pk=second.pk).update(version_of=first.pk, branch=1)
    html = ada.get(f"/chat/{session.pk}/").content.decode()
    [row] = re.findall(r'<li class="row user"[^>]* data-versions>.*?</li>\n', html, re.S)
    assert '<span data-slot="version">2/2</span>' in row
    assert "One" not in html.partition("<template")[0]


def test_a_call_is_painted_whatever_its_arguments_are_called(ada: Client) -> None:
    """W2.3: a list of todos is an argument named `items`"""
    session = factories.session()
    data = {"tool": "todos_write", "arguments": {"items": [{"text": "Row", "status": "pending"}]}}
    factories.message(session, "tool_call", call_id="c", data=data)
    assert "<dt>items</dt>" in ada.get(f"/chat/{session.pk}/").content.decode()


def test_scripts_speak_the_readers_language(client, settings, tmp_path):
    """W4.6: their texts come with the page, and those of notices and refusals; English needs none"""
    folder = tmp_path / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    texts = {
        "djangojs": {"Copied": "Kopiert"},
        "django": {
            "Model not responding": "Anbieter nicht erreichbar",
            "The message is empty.": "Die Nachricht ist leer.",
        },
    }
    for domain, known in texts.items():
        entries = "\n".join(f'msgid "{text}"\nmsgstr "{said}"\n' for text, said in known.items())
        (folder / f"{domain}.po").write_text(header + entries)
        subprocess.run(["msgfmt", folder / f"{domain}.po", "-o", folder / f"{domain}.mo"], check=True)
    settings.LOCALE_PATHS = [tmp_path]
    settings.LANGUAGES = [("en", "English"), ("de", "Deutsch")]
    client.force_login(factories.ada())
    assert 'id="words"' not in client.get("/chat/", headers={"Accept-Language": "en"}).text
    session = factories.session()
    factories.message(session, "notice", data={"code": "overloaded"})
    german = client.get(f"/chat/{session.pk}/", headers={"Accept-Language": "de"}).text
    assert '"Copied": "Kopiert"' in german
    assert '<strong data-slot="label">Anbieter nicht erreichbar</strong>' in german
    assert '"Model not responding": "Anbieter nicht erreichbar"' in german  # for those that come live
    assert '"refused:empty_message": "Die Nachricht ist leer."' in german
    refused = client.post(f"/chat/{session.pk}/send/", {"text": " "}, headers={"Accept-Language": "de"})
    assert ">Die Nachricht ist leer.</p>" in refused.text


def test_every_text_of_the_scripts_can_be_gathered():
    """W4.6: none is put together from pieces that no translator sees"""
    found = subprocess.run(
        ["xgettext", "--from-code=UTF-8", "-L", "JavaScript", "-k_", "-o", "-", *SCRIPTS.rglob("*.js")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert all(f'msgid "{text}"' in found for text in ("Copied", "Thought for {seconds} s", "Today"))


def test_every_scope_of_a_key_says_what_it_allows(ada: Client) -> None:
    """W3, A20.6"""
    html = ada.get("/settings/keys/").content.decode()
    offered = re.findall(
        r'value="(\w+)"[^>]*><span><strong>\1</strong> <span class="soft">([^<]{10,})<', html
    )
    assert [name for name, _ in offered] == ["read", "chat", "manage", "billing"]


def test_deleted_chats_are_listed_in_the_trash_and_restored_from_there(ada: Client) -> None:
    owner = factories.ada()
    deleted, empty = factories.session(owner, title="Old plans"), factories.session(owner, title="Never used")
    factories.message(deleted, content="Hello")
    for session in (deleted, empty):
        sessions.delete_session(owner.pk, session.pk)
    page = ada.get("/chat/trash/").content.decode()
    assert "Old plans" in page
    assert "Never used" not in page
    assert "30 days" in page
    answer = ada.post(f"/chat/{deleted.pk}/restore/", follow=True)
    assert "Chat restored." in answer.content.decode()
    assert "Old plans" not in ada.get("/chat/trash/").content.decode()
    assert ada.get(f"/chat/{deleted.pk}/").status_code == 200


def test_the_trash_of_another_user_cannot_be_read_or_restored(ada: Client) -> None:
    foreign = factories.session(factories.bob(), title="Bob's plans")
    factories.message(foreign, content="Hello")
    sessions.delete_session(foreign.owner_id, foreign.pk)
    assert "Bob" not in ada.get("/chat/trash/").content.decode()
    assert ada.post(f"/chat/{foreign.pk}/restore/").status_code == 404


def test_the_builder_of_an_agent_begins_with_what_can_be_done(ada: Client) -> None:
    version = agents.create_agent(
        factories.ada().pk, agents.AgentDraft(name="Reporter", instructions="Report the news.")
    )
    answer = ada.post(f"/agents/{version.agent_id}/build/", follow=True)
    page = answer.content.decode()
    assert "Edit Reporter" in page
    assert "Make the instructions shorter and clearer." in page
    assert f"/agents/{version.agent_id}/" in page


def test_the_next_run_of_a_task_is_shown_in_its_own_zone_with_its_name(ada: Client) -> None:
    request = schedules.ScheduleRequest(cron="30 8 * * *", timezone="Asia/Tokyo", prompt="Read the news")
    schedules.create_schedule(factories.ada().pk, request, UNRESTRICTED)
    page = ada.get("/settings/schedules/").content.decode()
    shown = re.findall(r'data-zone="Asia/Tokyo">(\S+)</time>', page)
    assert len(shown) == 3
    assert all(run.endswith("T08:30+09:00") for run in shown)
    assert "Every day at 8:30 AM" in page


@pytest.mark.parametrize(
    ("chosen", "line", "sentence"),
    [
        ({"repeat": "daily", "at": "07:05"}, "5 7 * * *", "Every day at 7:05 AM"),
        ({"repeat": "weekdays", "at": "08:30"}, "30 8 * * 1-5", "Every weekday at 8:30 AM"),
        (
            {"repeat": "weekly", "at": "18:00", "weekdays": ["1", "7"]},
            "0 18 * * 1,7",
            "Every Monday, Sunday at 6:00 PM",
        ),
        (
            {"repeat": "monthly", "at": "09:00", "month_day": "L"},
            "0 9 L * *",
            "On the last day of every month",
        ),
        ({"repeat": "monthly", "at": "09:00", "month_day": "5"}, "0 9 5 * *", "On day 5 of every month"),
        ({"repeat": "cron", "cron": "*/30 9-17 * * *"}, "*/30 9-17 * * *", "*/30 9-17 * * *"),
    ],
)
def test_a_task_is_scheduled_by_choice_and_described_by_a_sentence(
    ada: Client, chosen: dict[str, str | list[str]], line: str, sentence: str
) -> None:
    fields = {"prompt": "Read the news", "timezone": "Europe/Berlin", **chosen}
    page = ada.post("/settings/schedules/", fields, follow=True).content.decode()
    [task] = schedules.list_schedules(factories.ada().pk)
    assert task.cron == line
    assert sentence in page
    edited = ada.get(f"/settings/schedules/{task.pk}/").content.decode()
    assert f'<option value="{chosen["repeat"]}" selected>' in edited


def test_a_choice_without_its_day_or_time_is_refused_at_the_field(ada: Client) -> None:
    fields = {"prompt": "Read", "timezone": "UTC", "repeat": "weekly", "at": ""}
    answer = ada.post("/settings/schedules/", fields)
    assert answer.status_code == 400
    assert "Choose at least one day." in answer.content.decode()
    assert "Choose a time." in answer.content.decode()


def test_a_task_is_edited_paused_and_turned_on_again(ada: Client) -> None:
    request = schedules.ScheduleRequest(cron="30 8 * * *", timezone="UTC", prompt="Read the news")
    task = schedules.create_schedule(factories.ada().pk, request, UNRESTRICTED)
    path = f"/settings/schedules/{task.pk}/"
    fields = {
        "prompt": "Read mail",
        "name": "Mail",
        "timezone": "Asia/Tokyo",
        "repeat": "daily",
        "at": "10:00",
    }
    assert ada.post(path, fields).status_code == 302
    task.refresh_from_db()
    assert (task.name, task.prompt, task.cron, task.timezone) == (
        "Mail",
        "Read mail",
        "0 10 * * *",
        "Asia/Tokyo",
    )
    assert task.next_run is not None
    assert task.next_run.hour == 1
    ada.post(f"{path}pause/")
    assert schedules.get_schedule(task.owner_id, task.pk).next_run is None
    assert "paused" in ada.get("/settings/schedules/").content.decode()
    ada.post(f"{path}on/")
    assert schedules.get_schedule(task.owner_id, task.pk).next_run is not None


def test_a_task_runs_now_once_at_a_time_and_the_history_shows_it(ada: Client) -> None:
    request = schedules.ScheduleRequest(cron="30 8 * * *", timezone="UTC", prompt="Read the news")
    task = schedules.create_schedule(factories.ada().pk, request, UNRESTRICTED)
    path = f"/settings/schedules/{task.pk}/"
    page = ada.post(f"{path}run/", follow=True).content.decode()
    assert "Task started." in page
    [run] = schedules.list_runs(task)
    assert run.turn is not None
    assert f"/chat/{run.turn.session_id}/" in page
    ada.post(f"{path}run/")
    assert schedules.list_runs(task).count() == 1


@pytest.mark.parametrize("act", ["", "run/", "pause/"])
def test_another_users_task_is_not_found(ada: Client, act: str) -> None:
    request = schedules.ScheduleRequest(cron="30 8 * * *", timezone="UTC", prompt="Read the news")
    task = schedules.create_schedule(factories.bob().pk, request, UNRESTRICTED)
    assert ada.post(f"/settings/schedules/{task.pk}/{act}").status_code == 404
