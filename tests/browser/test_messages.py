"""What messages look like and what can be done with them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Site, Visitor, send_message, switch_theme
from tests.support.chat_page import (
    ANSWER_ROW,
    LONG_ANSWER_PROMPT,
    TURN_ID,
    SocketServer,
    create_chat,
    expect_idle,
    find_answers,
    find_user_messages,
    open_chat_with_fake_socket,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

Stored = Callable[[Callable[[], object]], object]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
STARTED: list[dict[str, object]] = [
    {"kind": "turn.queued", "turn_id": TURN_ID, "origin": "web", "run_ids": []},
    {"kind": "turn.started", "turn_id": TURN_ID, "run_ids": [], "model": "demo"},
]
FILE_ID = "11111111-2222-3333-4444-555555555555"


def row(number: int, kind: str = "assistant", **fields: object) -> dict[str, object]:
    return {
        **ANSWER_ROW,
        "id": f"row-{number}",
        "sequence": 10 + number,
        "kind": kind,
        "streaming": False,
        **fields,
    }


def tool_call(number: int, call_id: str, tool: str = "bash_exec") -> dict[str, object]:
    content = {"type": "tool_call", "call_id": call_id, "tool": tool, "arguments": {"command": "ls"}}
    return {
        "kind": "tool.called",
        "turn_id": TURN_ID,
        "call_id": call_id,
        "tool": tool,
        "row_id": f"row-{number}",
        "message": row(number, "tool_call", content=content),
    }


def tool_finished(number: int, call_id: str, tool: str = "bash_exec") -> dict[str, object]:
    content = {
        "type": "tool_result",
        "call_id": call_id,
        "tool": tool,
        "success": True,
        "preview": "ok",
        "duration_ms": 12,
        "truncated": False,
        "file_id": None,
        "session_id": None,
        "cancelled": False,
    }
    return {
        "kind": "tool.finished",
        "turn_id": TURN_ID,
        "call_id": call_id,
        "row_id": f"row-{number}",
        "success": True,
        "duration_ms": 12,
        "preview": "ok",
        "truncated": False,
        "message": row(number, "tool_result", content=content),
    }


def artifact(name: str, media_type: str, *, minute: int, file_id: str = FILE_ID) -> dict[str, object]:
    return {
        "kind": "artifact.added",
        "turn_id": TURN_ID,
        "file_id": file_id,
        "name": name,
        "type": media_type,
        "size": len(PIXEL),
        "created_at": f"2026-11-16T10:{minute:02}:00.000Z",
        "call_id": "made",
    }


def text_started(number: int, content: str = "") -> dict[str, object]:
    message = row(number, content=content, streaming=True)
    return {
        "kind": "text.started",
        "turn_id": TURN_ID,
        "block_id": "b",
        "row_id": f"row-{number}",
        "message": message,
    }


@pytest.fixture
def live(ada: Visitor, stored: Stored) -> tuple[Page, SocketServer]:
    """A chat whose events the test writes."""
    session = str(stored(lambda: create_chat(ada.email)))
    ada.log_in()
    page, wire, _ = open_chat_with_fake_socket(ada, session)
    return page, wire


# --- Markdown ---

GITHUB = {
    "tags": "H<sub>2</sub>O, x<sup>2</sup>, <kbd>Ctrl</kbd>+<kbd>C</kbd><br>next\n\n<br>\n\n<kbd>Esc</kbd> first\n",
    "tags without a counterpart": "a <sub>b, c</sup> d, <kbd onclick=x>e</kbd>\n\n<u>f *g</u> h*\n\n<b>all <i>of</b> it</i>\n",
    "details": "<details>\n<summary>More *here*</summary>\n\n- a\n- b\n\n```\n</details>\n```\n\nend\n</details>\n\nafter\n",
    "details in details": "<details open><summary>a</summary>b</details>\n<details>\n\n<details>\nc\n</details>\nd\n</details>\ne\n",
    "long details": "<details>\n<summary>s</summary>\n\n"
    + "The **harbour** lights.\n\n- a\n- b\n\n" * 30
    + "</details>\n\nafter\n",
    "details that never close": "a\n\n<details>\nb\n\nc <b>d</b>\n",
    "callouts": "> [!NOTE]\n> a **b**\n>\n> - c\n\n> [!warning]\n\n> [!OTHER]\n> d\n",
    "footnotes": "a[^1] and [^name], not [^a-z] nor [^x]\n\n[^1]: The *first*\ngoes on\n[^name]: The second\n\n- [ ] b\n",
    "tasks": "- [x] a\n- [ ] **b**\n  - [x] c\n\n1. [ ] d\n",
    "tables with breaks": "| a | b |\n|---|---|\n| x<br>y | <sub>z</sub> |\n",
}
# The text letter by letter, and at once.
GROW = """async (text) => {
  const {StreamingMarkdown} = await import("/static/js/lib/markdown.js");
  const shown = (pieces) => {
    const box = document.createElement("div");
    const growing = new StreamingMarkdown(box);
    for (const piece of pieces) growing.update(piece, piece === text);
    return box.innerHTML;
  };
  return [shown([...text].map((_, i) => text.slice(0, i + 1))), shown([text])];
}"""
# Two pieces of HTML as the browser reads them; white space between tags does not count.
SAME = """([one, other]) => [one, other].map((html) => {
  const box = document.createElement("div");
  box.innerHTML = html;
  box.normalize();
  for (const node of box.querySelectorAll("[rel]")) node.removeAttribute("rel");
  return box.innerHTML.replace(/>\\s+/g, ">").replace(/\\s+</g, "<").replaceAll("<br>", "<br>\\n");
})"""


@pytest.fixture(scope="module")
def blank(browser: Browser, site: Site) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(site.url)
    yield page
    page.close()


@pytest.mark.parametrize("text", GITHUB.values(), ids=GITHUB)
def test_markdown_of_github_comes_to_the_same_live_at_once_and_after_a_reload(blank: Page, text: str) -> None:
    """W2.1: tags, details, callouts, footnotes and tasks; a reload changes nothing"""
    from copilot.web import markdown

    grown, whole = blank.evaluate(GROW, text)
    assert grown == whole
    live_html, stored_html = blank.evaluate(SAME, [whole, str(markdown.render(text))])
    assert live_html == stored_html


def test_a_footnote_leads_to_its_text(live: tuple[Page, SocketServer]) -> None:
    page, wire = live
    text = "Deep[^1]\n\n" + "line\n\n" * 80 + "[^1]: As the *sea*\n"
    wire.say({"kind": "message.added", "message": row(1, content=text)})
    page.get_by_role("button", name="1", exact=True).click()
    expect(page.locator(".footnote-text")).to_be_in_viewport()
    expect(page.locator(".footnote-text em")).to_have_text("sea")


# --- Files in answers ---


def test_an_answer_calls_a_file_by_its_name_and_copies_a_link_that_works(
    ada: Visitor, stored: Stored
) -> None:
    """W2.1: live, after a reload, and in what is copied"""

    def make() -> str:
        from django.contrib.auth.models import User

        from copilot.files import services as files
        from tests.support import factories

        owner = User.objects.get(email=ada.email)
        session = factories.session(owner, title="Report")
        made = files.store_file(owner.pk, name="report.csv", content=b"a,b", source="upload")
        factories.message(session, content="Make it")
        factories.message(session, "assistant", content=f"It is in workspace://{made.pk} now.")
        return f"{session.pk} {made.pk}"

    session_id, file_id = str(stored(make)).split()
    ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ada.log_in()
    page, wire, _ = open_chat_with_fake_socket(ada, session_id)
    expect(find_answers(page).locator("a")).to_have_text("report.csv")
    wire.say({"kind": "message.added", "message": row(1, content=f"See workspace://{file_id}.")})
    expect(find_answers(page)).to_have_count(2)
    expect(find_answers(page).last.locator("a")).to_have_text("report.csv")
    page.locator(".row.answer").last.get_by_role("button", name="Copy").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == f"See [report.csv]({ada.site.url}/files/{file_id}/)."


def test_a_picture_that_the_answer_shows_is_shown_once(live: tuple[Page, SocketServer]) -> None:
    """W2.3: its card goes when the answer has it, and no panel opens for it"""
    page, wire = live
    page.route(
        re.compile(r"/download\?inline="),
        lambda route: route.fulfill(body=PIXEL, content_type="image/png"),
    )
    wire.say(*STARTED, tool_call(1, "made", "python_exec"), artifact("plot.png", "image/png", minute=1))
    card = page.locator(".row.made")
    expect(card.locator("img")).to_be_visible()
    expect(page.locator("#panel")).to_be_hidden()
    text = f"Here:\n\n![The plot](workspace://{FILE_ID})"
    wire.say(
        tool_finished(2, "made", "python_exec"), {"kind": "message.added", "message": row(3, content=text)}
    )
    expect(find_answers(page).locator("img")).to_be_visible()
    expect(card).to_be_hidden()
    expect(page.locator("#panel")).to_be_hidden()


def test_the_panel_moves_to_a_new_version_but_not_away_from_an_old_one(
    live: tuple[Page, SocketServer],
) -> None:
    """W2.3: what one looks at is the newest"""
    page, wire = live
    page.route("**/api/v1/files/**", lambda route: route.fulfill(body="text", content_type="text/plain"))
    ids = [str(uuid.UUID(int=number)) for number in range(3)]
    wire.say(*STARTED, tool_call(1, "made"), artifact("a.txt", "text/plain", minute=1, file_id=ids[0]))
    chosen = page.locator("#panel [data-slot=versions] option:checked")
    expect(page.locator("#panel")).to_be_visible()
    wire.say(artifact("a.txt", "text/plain", minute=2, file_id=ids[1]))
    expect(chosen).to_have_text("Version 2 of 2")
    page.get_by_label("Version", exact=True).select_option(ids[0])
    expect(chosen).to_have_text("Version 1 of 2")
    wire.say(artifact("a.txt", "text/plain", minute=3, file_id=ids[2]))
    expect(chosen).to_have_text("Version 1 of 3")


def test_ones_own_picture_opens_over_the_chat(live: tuple[Page, SocketServer]) -> None:
    """W2.8: the chat stays where it is, and the focus comes back"""
    page, wire = live
    page.route(
        re.compile(r"/download\?inline="), lambda route: route.fulfill(body=PIXEL, content_type="image/png")
    )
    files = [
        {"file_id": str(uuid.UUID(int=number)), "name": f"{number}.png", "type": "image/png", "size": 70}
        for number in (1, 2)
    ]
    wire.say({"kind": "message.added", "message": row(1, "user", content="Look", attachments=files)})
    address = page.url
    page.locator(".row-files a.picture").first.click()
    box = page.locator("#lightbox")
    expect(box.locator("img")).to_have_attribute("alt", "1.png")
    expect(box).to_contain_text("1 of 2")
    page.keyboard.press("ArrowRight")
    expect(box.locator("img")).to_have_attribute("alt", "2.png")
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    assert page.url == address
    expect(page.locator(".row-files a.picture").first).to_be_focused()


# --- While a turn runs ---


def test_the_line_below_is_silent_while_a_row_says_that_a_tool_runs(live: tuple[Page, SocketServer]) -> None:
    """W2.3: also when another call of the group has ended before it"""
    page, wire = live
    wire.say(*STARTED, tool_call(1, "one"), tool_call(2, "two"), tool_finished(3, "two"))
    expect(page.locator(".row.tool").nth(1)).to_have_attribute("data-state", "done")
    expect(page.locator(".row.tool").first).to_contain_text("running…")
    expect(page.locator("#working")).to_be_hidden()
    wire.say(tool_finished(4, "one"))
    expect(page.locator("#working")).to_have_text("Thinking…")


def test_what_a_failed_call_wrote_stays_until_the_next_attempt_writes(
    live: tuple[Page, SocketServer],
) -> None:
    """W2.6: dimmed, and gone when there is something else to read"""
    page, wire = live
    wire.say(*STARTED, text_started(1, "The harbour"))
    expect(find_answers(page)).to_have_text("The harbour")
    wire.say(
        {"kind": "step.retracted", "turn_id": TURN_ID, "step_id": "s", "row_ids": ["row-1"], "round": 1},
        {
            "kind": "model.retrying",
            "turn_id": TURN_ID,
            "label": "Busy",
            "attempt": 1,
            "attempts": 3,
            "delay_seconds": 9,
        },
    )
    expect(page.locator("#working")).to_have_text("Busy (1 of 3)…")
    expect(page.locator(".row.answer[data-retracted]")).to_contain_text("The harbour")
    wire.say(text_started(2, "A new try"))
    expect(find_answers(page)).to_have_text(["A new try"])


def test_no_empty_ring_is_painted_before_the_context_is_known(live: tuple[Page, SocketServer]) -> None:
    """W2.1: a ring says how full it is"""
    page, wire = live
    metered = {
        "kind": "usage.metered",
        "turn_id": TURN_ID,
        "tokens_per_second": 40,
        "context_used_percent": None,
    }
    wire.say(*STARTED, text_started(1, "Ahoy"), metered)
    expect(page.locator("#meter")).to_have_text("40 tokens/s")
    expect(page.locator("#meter svg")).to_be_hidden()
    wire.say({**metered, "context_used_percent": 12})
    expect(page.locator("#meter svg")).to_be_visible()


def test_only_the_last_notice_offers_to_continue(live: tuple[Page, SocketServer]) -> None:
    """W2.6: an older one would send to the end of the chat"""
    page, wire = live
    notice = {
        "type": "notice",
        "code": "stopped",
        "label": "Stopped",
        "hint": "",
        "action": "continue",
        "details": "",
    }
    wire.say({"kind": "message.added", "message": row(1, "notice", content=notice)})
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    wire.say({"kind": "message.added", "message": row(2, "user", content="Go on")})
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()


def test_a_queued_message_of_files_alone_names_them(live: tuple[Page, SocketServer]) -> None:
    """W2.5"""
    page, wire = live
    files = [{"file_id": FILE_ID, "name": "map.pdf", "type": "application/pdf", "size": 3}]
    item = {"id": "q", "text": "", "run_id": None, "position": 1, "attachments": files}
    wire.say(*STARTED, {"kind": "queue.changed", "items": [item], "version": 2**52})
    expect(page.locator("#queue .chip")).to_contain_text("map.pdf")


def test_send_now_sends_one_queued_message_and_leaves_the_others(ada: Visitor) -> None:
    """W2.5, T7.4"""
    page = ada.log_in()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(find_answers(page)).to_contain_text("Part 1")
    for text in ("first", f"{LONG_ANSWER_PROMPT} again"):
        send_message(page, text)
        expect(page.locator("#queue .chip").last).to_contain_text(text)
    page.locator("#queue .chip").last.get_by_role("button", name="Send now").click()
    expect(find_user_messages(page)).to_have_text([LONG_ANSWER_PROMPT, f"{LONG_ANSWER_PROMPT} again"])
    expect(find_answers(page).last).to_contain_text("Part 1")
    expect(page.locator("#queue .chip")).to_contain_text(["first"])
    page.keyboard.press("Escape")
    expect_idle(page)


# --- Steps ---


def test_an_opened_step_shows_the_whole_script_and_output(ada: Visitor, stored: Stored) -> None:
    """W2.3: what the wire shortens is fetched; a program that failed looks like a failure"""
    script = "\n".join(f"print({number})" for number in range(60))
    output = "line\n" * 2_000

    def make() -> str:
        from django.contrib.auth.models import User

        from tests.support import factories

        session = factories.session(User.objects.get(email=ada.email), title="Script")
        turn = factories.turn(session, "succeeded")
        factories.message(session, content="Run it", turn=turn)
        call = {"tool": "python_exec", "arguments": {"code": script}}
        factories.message(session, "tool_call", turn=turn, call_id="c/1", data=call)
        whole = json.dumps({"exit_code": 1, "stderr": "", "stdout": output}, sort_keys=True)
        result = {
            "tool": "python_exec",
            "success": True,
            "preview": whole[:4000],
            "duration_ms": 5,
            "truncated": False,
        }
        factories.message(session, "tool_result", turn=turn, call_id="c/1", content=whole, data=result)
        return str(session.pk)

    session_id = stored(make)
    ada.log_in()
    page = ada.tab(f"/chat/{session_id}/")
    row = page.locator(".row.tool")
    expect(row).to_have_attribute("data-state", "failed")
    expect(row.locator("summary")).to_contain_text("Ran Python")
    expect(row.locator("summary")).to_contain_text("exit 1")
    row.locator("summary").click()
    expect(row.locator("[data-slot=command]")).to_have_text(script)
    expect(row.locator("[data-slot=command] .hljs-number").first).to_be_visible()
    expect(row.locator("[data-slot=stdout]")).to_have_text(output)


# --- Around the messages ---


def test_a_sub_chat_leads_back_to_the_chat_that_started_it(ada: Visitor, stored: Stored) -> None:
    """W4.2: nothing leads into a corner"""

    def make() -> str:
        from django.contrib.auth.models import User

        from copilot.chat import sub_sessions
        from tests.support import factories

        parent = factories.session(User.objects.get(email=ada.email), title="Harbour")
        factories.message(parent, content="Ask around")
        return str(sub_sessions.create_sub_session(parent).pk)

    child = stored(make)
    ada.log_in()
    page = ada.tab(f"/chat/{child}/")
    page.get_by_role("link", name="Back to “Harbour”").click()
    expect(page.locator("#title")).to_have_text("Harbour")
    expect(page.locator(".topbar-back")).to_have_count(0)


def test_renaming_gives_the_focus_back(ada: Visitor, stored: Stored) -> None:
    """W4.2: after Enter and after Escape"""
    from tests.support.browser import choose_in_menu

    stored(lambda: create_chat(ada.email))
    page = ada.log_in()
    for key in ("Enter", "Escape"):
        choose_in_menu(page, "Rename")
        page.get_by_role("textbox", name="Title").fill(f"Named by {key}")
        page.keyboard.press(key)
        expect(page.locator("#sessions .session a").first).to_be_focused()


def test_ones_own_bubbles_stand_out_in_both_themes(live: tuple[Page, SocketServer]) -> None:
    """W4.1: against the page behind them"""
    page, _ = live
    contrast = """() => {
      const light = (colour) => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255);
        const [r, g, b] = parts.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
      };
      const at = (node) => light(getComputedStyle(node).backgroundColor);
      const [one, other] = [at(document.querySelector(".bubble")), at(document.documentElement)].sort();
      return other / one;
    }"""
    switch_theme(page, "light")
    assert page.evaluate(contrast) >= 1.08
    switch_theme(page, "dark")
    assert page.evaluate(contrast) >= 1.25
