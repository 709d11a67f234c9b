"""A person talks to the demo in a real browser (W2, W4.5)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, WebSocketRoute, expect

from tests.support.browser import Site, Visitor, send_message
from tests.support.chat_page import LONG_ANSWER_PROMPT, expect_idle, find_answers, find_user_messages

pytestmark = pytest.mark.browser

CHAT_SCRIPT = re.compile(r"/js/chat/chat_page\b[^/]*\.js")


def chips(page: Page) -> Locator:
    return page.locator("#queue .chip")


def test_the_first_message_makes_a_chat_and_gets_an_answer(ada: Visitor) -> None:
    """W1.1, W1.2, W2.1: from the sign-in form on; the demo says what it is, in its first answer and under it."""
    page = ada.sign_in()
    send_message(page, "Hello there")
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    expect(page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))
    expect(find_answers(page).last).to_contain_text("This is a scripted demo, not an AI.")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    expect(page.locator(".row.answer").last).to_contain_text("Demo, scripted, no AI")
    expect(page.locator("#sessions [aria-current=page]")).to_have_text("Hello there")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_a_tool_call_is_one_line_that_opens(ada: Visitor) -> None:
    """W2.3: what ran, its state and duration; inside, the result."""
    page = ada.log_in()
    send_message(page, "use a tool")
    row = page.locator(".row.tool")
    expect(row).to_have_attribute("data-state", "done")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    expect(row).to_be_hidden()  # steps fold once the answer stands
    page.get_by_role("button", name="Show 4 steps").click()
    expect(row.locator("summary")).to_contain_text("Checked the time")
    row.locator("summary").click()
    expect(row.locator("[data-slot=result]")).to_contain_text("timezone")
    expect(page.locator(".row.thought").first).to_contain_text("Thought for")
    page.reload()
    page.get_by_role("button", name="Show 4 steps").click()
    expect(row).to_be_visible()
    page.get_by_role("button", name="Hide 4 steps").click()
    expect(row).to_be_hidden()


def test_a_message_sent_during_a_turn_waits_as_a_chip_and_becomes_a_bubble(ada: Visitor) -> None:
    """W2.5, T6.6."""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    send_message(page, "and this later")
    expect(chips(page)).to_have_text([re.compile("and this later")])
    chips(page).get_by_role("button", name="Edit").click()
    page.get_by_label("Queued message", exact=True).fill("and this now")
    page.keyboard.press("Enter")
    expect(chips(page)).to_have_text([re.compile("and this now")])
    page.reload()
    expect(chips(page)).to_have_text([re.compile("and this now")])
    chips(page).get_by_role("button", name="Send now").click()
    expect(find_user_messages(page)).to_have_text([LONG_ANSWER_PROMPT, "and this now"])
    expect(chips(page)).to_have_count(0)
    expect(find_answers(page)).to_have_count(2)
    expect(find_answers(page).last).to_contain_text("kill -9")
    expect_idle(page)


def test_queued_messages_can_be_moved_and_removed(ada: Visitor) -> None:
    """W2.5."""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    send_message(page, "first")
    expect(chips(page)).to_have_count(1)
    send_message(page, "second")
    expect(chips(page)).to_have_text([re.compile("first"), re.compile("second")])
    chips(page).nth(1).get_by_role("button", name="Move up").click()
    expect(chips(page)).to_have_text([re.compile("second"), re.compile("first")])
    chips(page).nth(0).get_by_role("button", name="Remove").click()
    expect(chips(page)).to_have_text([re.compile("first")])
    page.keyboard.press("Escape")
    expect_idle(page)
    expect(chips(page)).to_have_text([re.compile("first")])  # T7.4: a stop keeps the queue


def test_an_open_chip_stays_open_while_others_come_and_gives_its_focus_back(ada: Visitor) -> None:
    """W2.5, W4.2: what is sent meanwhile stands around the editor, and nobody is left without a focus"""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    for text in ("first", "second"):
        send_message(page, text)
        expect(chips(page).last).to_contain_text(text)
    chips(page).nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("Queued message", exact=True).fill("half a thou")
    send_message(page, "third")
    expect(chips(page)).to_have_text([re.compile("first"), re.compile("Save"), re.compile("third")])
    expect(page.get_by_label("Queued message", exact=True)).to_have_value("half a thou")
    page.get_by_label("Queued message", exact=True).press("Escape")
    expect(chips(page).nth(1).get_by_role("button", name="Edit")).to_be_focused()
    chips(page).nth(1).get_by_role("button", name="Move up").press("Enter")
    expect(chips(page)).to_have_text([re.compile("second"), re.compile("first"), re.compile("third")])
    for left in (2, 1, 0):
        chips(page).first.get_by_role("button", name="Remove").press("Enter")
        expect(chips(page)).to_have_count(left)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="Stop").press("Enter")
    expect_idle(page)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_what_was_changed_too_late_is_not_lost(ada: Visitor) -> None:
    """W2.5: the message is taken while somebody edits it; their words go to the composer"""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    send_message(page, "say this")
    other = ada.tab(page.url.removeprefix(ada.site.url))
    chips(page).get_by_role("button", name="Edit").click()
    page.get_by_label("Queued message", exact=True).fill("say that instead")
    chips(other).get_by_role("button", name="Send now").click()
    expect(find_user_messages(page)).to_have_text([LONG_ANSWER_PROMPT, "say this"])
    expect(page.get_by_label("Message", exact=True)).to_have_value("say that instead")


def test_chips_are_put_in_order_on_a_phone(visit: Callable[..., Visitor]) -> None:
    """W2.5, W4.1"""
    page = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).log_in()
    for text, shown in ((LONG_ANSWER_PROMPT, "Part 1"), ("first", "first"), ("second", "second")):
        page.get_by_label("Message", exact=True).fill(text)
        page.get_by_role("button", name="Send", exact=True).tap()
        expect(page.get_by_text(shown, exact=True)).to_be_visible()
    expect(chips(page)).to_have_count(2)
    chips(page).nth(1).get_by_role("button", name="Move up").tap()
    expect(chips(page)).to_have_text([re.compile("second"), re.compile("first")])


def test_first_words_that_cannot_be_sent_go_back_to_the_box(ada: Visitor) -> None:
    """W2.6: no network, and no chat yet: what was typed is not lost"""
    page = ada.log_in()
    ada.outage = True
    page.route("**/api/v1/sessions", lambda route: route.abort())
    send_message(page, "Precious words")
    expect(page.locator("#problem")).to_contain_text("You're offline")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Precious words")
    page.unroute("**/api/v1/sessions")
    page.keyboard.press("Enter")
    expect(find_user_messages(page)).to_have_text(["Precious words"])


def test_a_chat_that_cannot_be_followed_yet_is_asked_for_again(ada: Visitor) -> None:
    """W2.6, T8.2: after a reconnect the database is still away; the page continues where it was, not nowhere"""
    page = ada.log_in()
    send_message(page, "Hello")
    expect(find_answers(page)).to_contain_text("kill -9")
    expect_idle(page)
    asked: list[str] = []

    def between(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def heard(text: str | bytes) -> None:
            command = json.loads(text)
            if command["kind"] == "session.subscribe":
                asked.append(command.get("cursor", ""))
                if len(asked) == 1:
                    away = {"kind": "error", "ref": command["ref"], "code": "unavailable", "message": "Away."}
                    return socket.send(json.dumps(away))
            server.send(text)
            return None

        socket.on_message(heard)

    late = ada.context.new_page()
    late.route_web_socket("**/ws/", between)
    late.goto(page.url)
    ada.is_connected(late)
    send_message(page, "And more")
    expect(find_user_messages(late)).to_have_text(["Hello", "And more"])
    assert asked[0] == asked[1] != ""


def test_stop_edit_and_resend(ada: Visitor) -> None:
    """T7.2, T7.5, W1.3: the partial answer stays, says "Stopped", and ↑ edits what was said."""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    page.locator(".me summary").click()
    page.keyboard.press("Escape")  # means the menu, and nothing else
    expect(page.locator(".me[open]")).to_have_count(0)
    expect(page.locator(".me summary")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".row.notice")).to_have_text(re.compile("Stopped"))
    expect_idle(page)
    expect(find_answers(page)).to_contain_text("Part 1")
    page.get_by_label("Message", exact=True).press("ArrowUp")
    editor = page.get_by_label("Edit your message")
    expect(editor).to_have_value(LONG_ANSWER_PROMPT)
    editor.fill("just hello")
    editor.press("Enter")
    expect(find_user_messages(page)).to_have_text(["just hello"])
    expect(find_answers(page)).to_have_count(1)
    expect(find_answers(page)).to_contain_text("kill -9")
    expect_idle(page)


def test_a_reload_in_the_middle_of_an_answer_changes_nothing(ada: Visitor) -> None:
    """T12, E5: the page that was reloaded ends as the one that never was."""
    steady = ada.log_in()
    send_message(steady, "Hello")
    expect(find_answers(steady)).to_contain_text("scripted demo")
    reloaded = ada.tab(steady.url.removeprefix(ada.site.url))
    for _ in range(3):
        reloaded.reload()
        expect(find_answers(reloaded)).to_contain_text("scripted demo")
    for page in (steady, reloaded):
        expect_idle(page)
        expect(find_answers(page)).to_contain_text("kill -9")
    assert find_answers(steady).all_inner_texts() == find_answers(reloaded).all_inner_texts()
    reloaded.reload()
    assert _text(find_answers(steady)) == _text(
        find_answers(reloaded)
    )  # the server's rendering says the same


def _text(rows: Locator) -> str:
    return " ".join(" ".join(rows.all_inner_texts()).split())


def test_two_tabs_show_the_same_conversation_in_step(ada: Visitor) -> None:
    """W2.10."""
    left = ada.log_in()
    send_message(left, "Hello")
    expect(left).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))
    right = ada.tab(left.url.removeprefix(ada.site.url))
    expect_idle(left)
    send_message(right, "From tab two")
    expect(find_user_messages(left)).to_have_text(["Hello", "From tab two"])
    for page in (left, right):
        expect(find_answers(page)).to_have_count(2)
        expect(find_answers(page).last).to_contain_text("kill -9")
        expect_idle(page)
    assert find_answers(left).all_inner_texts() == find_answers(right).all_inner_texts()


def test_a_chat_created_while_a_page_was_loading_is_in_its_list(ada: Visitor) -> None:
    """W2.9, E2: what happens between the page and its socket is told by no event"""
    right = ada.log_in()
    left, held = ada.context.new_page(), list[Route]()
    left.route(CHAT_SCRIPT, lambda route: held.append(route))
    with left.expect_request(CHAT_SCRIPT):
        left.goto(f"{ada.site.url}/chat/", wait_until="domcontentloaded")
    send_message(right, "Hello")
    expect(right.locator("#sessions .session")).to_have_count(1)
    expect(left.locator("#sessions .session")).to_have_count(0)
    held[0].continue_()
    expect(left.locator("#sessions .session")).to_have_count(1)


def test_a_killed_server_costs_a_banner_and_nothing_else(ada: Visitor, site: Site) -> None:
    """W2.6, T8.2: after the reconnect nothing is missing and nothing is there twice."""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    ada.outage = True
    site.kill_web()
    expect(page.locator("#banner")).to_be_visible()
    site.start_web()
    expect(page.locator("#banner")).to_be_hidden()
    before = len(find_answers(page).inner_text())
    page.wait_for_function(
        "before => document.querySelector('.answer .prose').innerText.length > before", arg=before
    )
    ada.outage = False
    page.keyboard.press("Escape")
    expect_idle(page)
    live = _text(find_answers(page))
    page.reload()
    assert _text(find_answers(page)) == live


def test_a_question_is_a_card_that_an_answer_closes(ada: Visitor) -> None:
    """W2.4, A12.2."""
    page = ada.log_in()
    send_message(page, "ask me something")
    card = page.locator(".question")
    expect(card).to_contain_text("Which part shall I show next?")
    expect(page.locator(".row.tool[data-state=waiting]")).to_contain_text("Asking you")
    expect(card.locator(".countdown")).to_have_text(re.compile(r"^\d:\d\d$"))
    card.get_by_role("button", name="Recovery").press("Enter")
    expect(card).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(find_answers(page).last).to_contain_text("Recovery")


def test_todos_stand_above_the_composer(ada: Visitor) -> None:
    page = ada.log_in()
    send_message(page, "make a todo list")
    expect(page.locator("#todos summary")).to_contain_text("1 of 3")
    page.locator("#todos summary").click()
    expect(page.locator("#todos li")).to_have_count(3)


def test_an_attachment_goes_with_its_message(ada: Visitor) -> None:
    """W2.8."""
    page = ada.log_in()
    page.locator("#file").set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    expect(page.locator(".attachment[data-state=done]")).to_have_count(1)
    expect(page.locator(".attachment")).to_have_text(re.compile("notes.txt"))
    send_message(page, "see attachment")
    expect(page.locator(".row.user a")).to_have_text(["notes.txt"])
    with page.expect_download() as download:
        page.locator(".row.user a").click()
    assert download.value.suggested_filename == "notes.txt"


DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_a_picture_is_seen_in_the_bubble_live_and_after_a_reload(ada: Visitor) -> None:
    """A29.2, W2.8"""
    page = ada.log_in()
    page.locator("#file").set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": DOT})
    expect(page.locator(".attachment[data-state=done]")).to_have_count(1)
    send_message(page, "see picture")
    for _ in range(2):
        picture = page.locator(".row.user img")
        expect(picture).to_have_attribute("alt", "dot.png")
        expect(picture).to_have_js_property("naturalWidth", 1)
        page.reload()


def test_the_chat_works_on_a_phone(visit: Callable[..., Visitor]) -> None:
    """W4.1: at 360 px nothing scrolls sideways and the list of chats is a drawer."""
    visitor = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = visitor.log_in()
    page.get_by_label("Message", exact=True).fill("use a tool, write a file")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(find_answers(page).last).to_contain_text("the tool calls were real")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.querySelector('#scroll').scrollWidth <= 360")
    expect(page.locator("#sidebar")).not_to_be_visible()
    page.get_by_role("button", name="Open chats").click()
    expect(page.locator("#sidebar")).to_be_visible()
    page.get_by_role("button", name="Close chats").click()
    expect(page.locator("#sidebar")).not_to_be_visible()


def test_without_a_script_one_can_log_in_read_and_send(visit: Callable[..., Visitor]) -> None:
    """E5: a form post and a refresh."""
    page = visit(java_script_enabled=False).sign_in()
    expect(page.locator(".examples a:visible")).to_have_count(4)
    page.locator("#text").fill("Hello from a plain form")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(find_user_messages(page)).to_have_text(["Hello from a plain form"])
    expect(find_answers(page)).to_contain_text(
        "kill -9", timeout=30_000
    )  # the page refreshes itself while a turn runs
    page.locator("#text").fill("And a second one")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(find_user_messages(page)).to_have_text(["Hello from a plain form", "And a second one"])
    expect(find_user_messages(page).last).to_be_in_viewport()


def test_a_chat_is_named_after_its_first_answer(ada: Visitor) -> None:
    """A18: by a background worker, and told to the page that is open; the demo takes the user's own words."""
    page = ada.log_in()
    send_message(page, "How do I reset my router?")
    expect(page.locator("#sessions .session").first).to_contain_text("Reset router")


def test_a_refused_first_message_leaves_no_empty_chat(ada: Visitor) -> None:
    page = ada.log_in()
    page.locator("#tier option").first.evaluate("option => (option.value = 'unheard-of')")
    page.locator("#tier").evaluate("select => (select.value = 'unheard-of')")
    page.locator("#text").fill("Hello")
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as discarded:
        page.keyboard.press("Enter")
    assert discarded.value.status == 204
    expect(page.locator("#sessions li")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/chat/$"))
    expect(page.locator("#text")).to_have_value("Hello")
