"""The turn of fifty rounds as the page shows it: one answer, whatever came between (tests/copilot/agent/test_long_turn.py)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from config.dev.run import WORKERS
from copilot.providers.base import ModelRequest
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedPause,
    ScriptedText,
    ScriptedUsage,
    ScriptItem,
)
from copilot.realtime.payloads import Tokens
from tests.support.browser import Site, Visitor, send_message

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, WINDOW = 49, 40_000  # and the answer: fifty rounds, which is what a turn has
BRAKED, GONE, ASKED, STEERED, FULL, KILLED = 5, 12, 20, 27, 34, 42
PICTURES = os.environ.get("PICTURES")  # a folder, for people who want to look


class Errands:
    """Works through fifty rounds with the shipped tools, over a socket, and meets something on its way."""

    def __init__(self) -> None:
        self.step = 0
        self.met: set[str] = set()
        self.at_work = threading.Event()  # on the step that somebody speaks into
        self.spoken = threading.Event()

    def once(self, what: str, at: int) -> bool:
        new = self.step == at and what not in self.met
        if new:
            self.met.add(what)
        return new

    def __call__(self, request: ModelRequest) -> Sequence[ScriptItem]:
        if not request.tools:
            done = self.step > STEPS
            return [ScriptedText("A long errand" if done else "The steps up to here are done."), used(900)]
        if self.once("brake", BRAKED):
            return [
                ScriptedFailure(
                    status=429, headers={"retry-after": "1"}, body='{"error": {"message": "slow"}}'
                )
            ]
        if self.once("gone", GONE):
            return [
                ScriptedFailure(status=404, body='{"error": {"code": "model_not_found", "message": "gone"}}')
            ]
        if self.once("killed", KILLED):
            return [ScriptedText("Half of step 43"), ScriptedPause(KILLED)]
        self.step += 1
        if self.step > STEPS:
            return [ScriptedText("All of it is done."), used(2_000)]
        if self.once("steered", STEERED):
            self.at_work.set()
            assert self.spoken.wait(120)
        tokens = WINDOW - 5_000 if self.step == FULL else 2_000
        return [ScriptedText(f"Step {self.step}."), self._act(), used(tokens)]

    def _act(self) -> ScriptedCall:
        if self.step == ASKED - 1:
            return ScriptedCall("write_file", {"name": "draft.md", "content": "# A draft"})
        if self.step == ASKED:
            return ScriptedCall("delete_file", {"file": "draft.md"})
        items = [{"text": f"Step {self.step} of {STEPS}", "status": "in_progress"}]
        return ScriptedCall("todos_write", {"items": items})


def used(tokens: int) -> ScriptedUsage:
    return ScriptedUsage(Tokens(input=tokens, output=20))


@pytest.fixture(name="errands")
def errands_fixture(stored: Callable[[Callable[[], object]], object]) -> Iterator[Errands]:
    """Two models on one server; the site takes them from the catalogue's rows, as it does with an admin's edit."""
    from tests.support.chat_completions_server import serving

    with serving() as server:
        errands = Errands()
        server.otherwise = errands
        stored(lambda: _offer(server.address))
        yield errands
        errands.spoken.set()
        stored(_offer_nothing)


def _offer(address: str) -> None:
    from copilot.models import ModelEntry, TierEntry

    for position, name in enumerate(("First", "Second"), start=1):
        entry = ModelEntry.objects.create(
            name=name,
            provider="openai_chat",
            model=name.lower(),
            base_url=address,
            context_window=WINDOW,
        )
        TierEntry.objects.create(tier="standard", position=position, entry=entry)


def _offer_nothing() -> None:
    from copilot.models import ModelEntry, TierEntry

    TierEntry.objects.all().delete()
    ModelEntry.objects.all().delete()


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"errand-{name}.png")


def shown(page: Page) -> list[str]:
    """What the transcript says, row by row, without the times of day."""
    rows = page.locator("#transcript > .row")
    return [" ".join(text.split()) for text in rows.all_inner_texts()]


def offered(page: Page, site: Site) -> None:
    """The worker and the page have taken up the new models; both look for edits every two seconds."""
    for _ in range(120):
        if b"the model catalogue has changed: 2 models" in (site.logs / "turns.log").read_bytes():
            page.reload()
            expect(page.get_by_label("Model")).to_contain_text("First")
            return
        page.wait_for_timeout(250)
    pytest.fail("the site never took up the models")


def test_fifty_rounds_are_one_answer_on_the_page(ada: Visitor, site: Site, errands: Errands) -> None:
    """A7.1, A7.6, A11.3, A13.3, A17.3, A3.9, A33.c5: braked, switched, asked, steered, summarised, killed; a reload shows the same"""
    page = ada.log_in()
    offered(page, site)
    send_message(page, "Do all of it, step by step.")
    card = page.locator("#approvals .approval")
    expect(card).to_contain_text("Delete file?", timeout=120_000)
    picture(page, "1-asked")
    card.get_by_role("button", name="Approve", exact=True).click()

    assert errands.at_work.wait(120)
    send_message(page, "And be careful.")
    expect(page.locator("#queue .chip")).to_have_count(1)
    picture(page, "2-queued")
    errands.spoken.set()
    expect(page.locator(".row.user .bubble").nth(1)).to_have_text("And be careful.")
    expect(page.locator("#queue .chip")).to_have_count(0)

    expect(page.locator(".row.answer .prose").last).to_contain_text("Half of step 43", timeout=120_000)
    expect(page.locator(".row.summary")).to_have_count(1)
    picture(page, "3-before-the-kill")
    [worker] = [program for program in WORKERS if program.name == "turns"]
    site.children["turns"].kill()
    site.children["turns"].wait()
    site.start("turns", worker.command)
    expect(page.locator(".row.answer .prose").last).to_contain_text("All of it is done", timeout=180_000)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    picture(page, "4-done")

    assert errands.met == {"brake", "gone", "steered", "killed"}
    expect(page.locator(".row.notice")).to_have_count(0)
    expect(page.locator("#todos, .todos").first).to_contain_text("Step 49 of 49")
    before = shown(page)
    page.reload()
    expect(page.locator(".row.answer .prose").last).to_contain_text("All of it is done")
    picture(page, "5-reloaded")
    after = shown(page)
    assert before[-len(after) :] == after
