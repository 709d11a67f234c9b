"""Thousands of deltas without a stutter: the real page, and a socket that we hold the other end of (W4.4)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.support.browser import Site, Visitor
from tests.support.chat_page import (
    ANSWER_ROW,
    TURN_ID,
    SocketServer,
    create_chat,
    open_chat_with_fake_socket,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

DELTAS = 5_000
FEW = 100
WORDS = "The harbour lights of **Hamburg** were seen by `nobody` that night. "
PARAGRAPH = WORDS * 3 + "\n\n- one\n- two\n\n```python\nprint('ahoy')\n```\n\n"
TABLE = "| ship | flag | knots |\n|---|---|---:|\n" + "| **Ada** | `DE` | 12 |\n" * 160 + "\n"
LIST = "- sails at *dawn*, with `three` masts\n" * 130 + "\n"
LONG = WORDS * 90 + "\n\n"  # one paragraph: finished text must not be rendered again with every word
LONGEST_MS = 50  # W4.4: what an eye notices
MAIN_THREAD = "FireAnimationFrame"  # only the page's own thread has such events


def stream(page: Page, wire: SocketServer, text: str, pieces: int) -> None:
    """The text as one answer in so many deltas, about as fast as the fastest models write."""
    wire.say(
        {"kind": "turn.queued", "turn_id": TURN_ID, "origin": "web", "run_ids": []},
        {"kind": "turn.started", "turn_id": TURN_ID, "run_ids": [], "model": "demo"},
        {"kind": "text.started", "turn_id": TURN_ID, "block_id": "b", "row_id": "row", "message": ANSWER_ROW},
    )
    size = -(-len(text) // pieces)
    parts = [(at, text[at : at + size]) for at in range(0, len(text), size)]
    for first in range(0, len(parts), 10):
        deltas = [
            {
                "kind": "text.extended",
                "turn_id": TURN_ID,
                "block_id": "b",
                "row_id": "row",
                "offset": at,
                "delta": part,
            }
            for at, part in parts[first : first + 10]
        ]
        wire.say(*deltas)
        time.sleep(0.004)  # the pace of the wire, not a wait for anything
    # Only the last paragraph is looked at: reading the whole answer takes the driver a tenth of a second of the page's time.
    expect(page.locator(".row.answer .prose > p:last-child")).to_have_text("THE END", timeout=60_000)


def heap(cdp: CDPSession) -> int:
    cdp.send("HeapProfiler.enable")
    cdp.send("HeapProfiler.collectGarbage")
    return int(cdp.send("Runtime.getHeapUsage")["usedSize"])


def tasks_ms(trace: bytes) -> list[float]:
    """What each task of the page's thread cost: script, style, layout and paint, in the thread's own time.

    What other processes took from the machine meanwhile is not in it, so it means the same on a busy one.
    """
    events = [event for event in json.loads(trace)["traceEvents"] if "tdur" in event]
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == MAIN_THREAD}
    tasks = [event for event in events if event["name"].endswith("RunTask")]
    return [event["tdur"] / 1000 for event in tasks if (event["pid"], event["tid"]) in threads]


def test_five_thousand_deltas_cost_no_long_frame_and_no_memory(
    ada: Visitor, browser: Browser, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W4.4: no task is long, also while a table, a list or a paragraph grows; what is kept is the text, however many pieces it came in"""
    session = stored(lambda: create_chat(ada.email))
    ada.log_in()
    rest = TABLE + LIST + LONG + "THE END"
    text = PARAGRAPH * ((DELTAS * 4 - len(rest)) // len(PARAGRAPH)) + rest
    few, wire, cdp = open_chat_with_fake_socket(ada, session)
    stream(few, wire, text, FEW)
    kept_by_few = heap(cdp)
    few.close()
    page, wire, cdp = open_chat_with_fake_socket(ada, session)
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    stream(page, wire, text, DELTAS)
    tasks = tasks_ms(browser.stop_tracing())
    assert len(tasks) > FEW
    assert max(tasks) <= LONGEST_MS
    assert heap(cdp) <= kept_by_few * 1.25


def test_only_what_can_be_read_is_offered_as_new(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.2: somebody reads further up; a new title is no new message"""

    def long_chat() -> str:
        from copilot.models import Session
        from tests.support import factories

        session = Session.objects.get(pk=create_chat(ada.email))
        factories.message(session, "assistant", content="Line.\n\n" * 200)
        return str(session.pk)

    session = stored(long_chat)
    ada.log_in()
    page, wire, _ = open_chat_with_fake_socket(ada, session)
    page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
    wire.say({"kind": "title.changed", "title": "Harbour"})
    expect(page.locator("#title")).to_have_text("Harbour")
    expect(page.locator("#pill")).to_be_hidden()
    wire.say(
        {
            "kind": "message.added",
            "message": {**ANSWER_ROW, "kind": "user", "role": "user", "content": "Ahoy"},
        }
    )
    expect(page.locator("#pill")).to_be_visible()
    page.locator("#pill").click()
    expect(page.get_by_text("Ahoy")).to_be_in_viewport()
    expect(page.locator("#pill")).to_be_hidden()


GROWING = {
    "tight, then loose": "- a\n- **b**\n  - c\n- d\n\n- e\n\nafter\n",
    "numbers": "3. a\n4. b\n   ```python\n   print(1)\n   ```\n5. c\n\n1) other\n",
    "tasks": "- [ ] a\n- [x] b\nlazy\n# Head\n",
    "table": "| a | b |\n|--|:-:|\n| 1 | `2` |\n| 3 |\n| 4 | **5** | 6 |\n\nafter [x](https://example.com)\n",
    "long paragraph": f"{WORDS * 12}and so on\n{WORDS * 8}\n\n- after\n",
    "long paragraph of odd signs": "2 * 3, a_b_c, [1], <5 ~ 6: " * 40 + f"*all {WORDS} at once* `a\n",
    "long paragraph becomes a heading": f"{WORDS * 9}\n---\n{WORDS * 9}| b |\n|--|--|\n| c | d |\n",
    "a mark that stays open": f"**{'never closed ' * 300}\n\nafter\n",
    "a mark that is closed late": f"see [{'a long label ' * 280}](https://example.com) there",
    "long list": "- sails at *dawn*, with `three` masts\n" * 40 + "  - and more\n- last\n\nafter\n",
    "long list, loose at its end": "1. sails at *dawn*\n" * 60 + "\n2. last\n\n   of all\n\nafter\n",
    "long loose list": "* sails at *dawn*\n\n  with `three` masts\n\n" * 25 + "* last\n***\n",
    "long list of lists": "2) **Ships**\n   - one\n   - two\n\n     more\n" * 20 + "3) end\nlazy\n- other\n",
    "long list of code": "- a\n  ```\n  - b\n\n  - c\n  ```\n" * 25 + "text\n",
    "long list of tasks": "- [ ] sails at dawn\n- [x] has masts\n" * 20 + "---\n",
    "long table": "| a | b |\n|--|:-:|\n" + "| *1* | `2` |\n| 3 |\n" * 50 + "\nafter\n",
    "long table, then a heading": "x | y\n--|--\n" + "one | two\n" * 60 + "# Head\n",
    "long quote": "> the **harbour** lights\n> were seen\n>\n> - a\n>   - b\n" * 12 + "\nafter\n",
    "long quote, lazy at its end": "> the **harbour** lights\n" * 40 + "lazy\n> again\n\n> other\n",
    "quote in quote": "> a\n> > b\n>> c\n>\n> ```\n> d\n> ```\n> $$\n> x\n> $$\n" * 3 + "\n",
    "quote and code": ">     code\n>\n>text\n > more\n>\n",
    "table becomes text": "| a | b |\n|--|\nafter\n\n- a\n- b\n***\n- c\n",
}
# The text letter by letter, and at once: the same nodes must stand there.
GROW = """async (text) => {
  const {StreamingMarkdown} = await import("/static/js/lib/markdown.js");
  const shown = (pieces) => {
    const box = document.createElement("div");
    const growing = new StreamingMarkdown(box);
    for (const piece of pieces) growing.update(piece, piece === text);
    return box.innerHTML;
  };
  const step = text.length > 1000 ? 7 : 1;
  return [shown([...text].map((_, i) => text.slice(0, i + 1)).filter((one, i) => i % step === 0 || one === text)), shown([text])];
}"""


@pytest.fixture(scope="module")
def blank(browser: Browser, site: Site) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(site.url)
    yield page
    page.close()


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING)
def test_text_that_grew_letter_by_letter_renders_like_the_whole_text(blank: Page, text: str) -> None:
    """W2.1, W4.4: lists, tables, quotes and long paragraphs grow by their parts, and come to the same"""
    grown, whole = blank.evaluate(GROW, text)
    assert grown == whole
