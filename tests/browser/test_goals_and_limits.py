"""Goals that continue automatically, turns that continue at a click, and the figures under the composer."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visitor, send_message
from tests.support.chat_page import LONG_ANSWER_PROMPT, expect_idle, find_answers, find_user_messages

pytestmark = pytest.mark.browser
Stored = Callable[[Callable[[], object]], object]


def test_a_goal_is_shown_judged_and_paused_when_no_model_can_judge_it(ada: Visitor) -> None:
    """A30.4, W2.8: the demo is no judge, so the person is told and has the next word; a reload shows the same"""
    page = ada.log_in()
    send_message(page, "Hello there")
    expect(find_answers(page)).to_have_count(1)
    expect_idle(page)
    send_message(page, "/goal Write a poem")
    expect(find_user_messages(page)).to_have_text(["Hello there", "Write a poem"])
    notice = page.locator(".row.notice")
    expect(notice).to_contain_text("Goal paused")
    expect(notice).to_contain_text("/goal resume")
    page.reload()
    expect(page.locator(".row.notice")).to_contain_text("Goal paused")
    send_message(page, "/goal")
    expect(page.locator(".toast")).to_contain_text("Write a poem")
    send_message(page, "/goal clear")
    expect(page.locator(".toast").last).to_contain_text("goal")
    expect(find_user_messages(page)).to_have_count(2)


def test_a_turn_that_reached_its_limit_continues_at_a_click(ada: Visitor, stored: Stored) -> None:
    """A10.1: never a silent end; the button says it in the person's place"""

    def limited() -> str:
        from tests.support import factories

        session = factories.session(factories.user(ada.email.partition("@")[0]), title="Limited")
        turn = factories.turn(session, "succeeded", limit_code="round_limit")
        factories.message(session, content="Do it all", turn=turn, origin="web")
        factories.message(session, "assistant", content="Half is done.", turn=turn)
        factories.message(session, "notice", data={"code": "round_limit"}, turn=turn)
        return str(session.pk)

    session_id = stored(limited)
    ada.log_in()
    page = ada.tab(f"/chat/{session_id}/")
    notice = page.locator(".row.notice")
    expect(notice).to_contain_text("Step limit reached")
    expect(notice.get_by_role("button", name="Retry")).to_be_hidden()
    notice.get_by_role("button", name="Continue").click()
    expect(find_user_messages(page)).to_have_text(["Do it all", "Continue."])
    expect(find_answers(page)).to_have_count(2)
    expect_idle(page)


def test_the_figures_show_how_fast_it_writes_and_how_full_the_context_is(
    ada: Visitor, stored: Stored
) -> None:
    """A19.7: live tokens per second while a turn writes; the share of the window once it is known"""
    page = ada.log_in()
    meter = page.locator("#meter")
    expect(meter).to_be_hidden()
    send_message(page, LONG_ANSWER_PROMPT)
    expect(meter).to_contain_text(re.compile(r"\d+ tokens/s"))
    session_id = page.url.rstrip("/").rsplit("/", 1)[1]

    def metered() -> None:
        from copilot.models import Turn
        from copilot.realtime import event_log
        from copilot.realtime.events import UsageMetered
        from copilot.realtime.payloads import Tokens

        turn = Turn.objects.get(session=session_id)
        figures = UsageMetered(tokens_per_second=12.0, context_used_percent=41.6, tokens=Tokens(output=9))
        event_log.append_events(session_id, [(figures, str(turn.pk))])

    page.get_by_role("button", name="Stop").click()
    expect_idle(page)
    stored(metered)
    expect(meter).to_contain_text("42% of context")
    expect(meter).not_to_contain_text("tokens/s")
