"""A chat whose message waits for the user's other chats says so, and starts automatically."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visitor, send_message
from tests.support.chat_page import LONG_ANSWER_PROMPT, find_answers

pytestmark = pytest.mark.browser

WAITS = "Waiting for another of your chats to finish…"


def allow(turns_at_once: int, email: str) -> None:
    """Put the person on a plan of so many turns at once."""
    from django.contrib.auth.models import User

    from billing.models import Account, TierPolicy

    TierPolicy.objects.filter(tier="ENTERPRISE").update(turns_at_once=turns_at_once)
    Account.objects.update_or_create(user=User.objects.get(email=email), defaults={"tier": "ENTERPRISE"})


@pytest.fixture
def capped(ada: Visitor, stored: Callable[[Callable[[], object]], object]) -> Iterator[Visitor]:
    stored(lambda: allow(1, ada.email))
    yield ada
    stored(lambda: allow(10, ada.email))


def test_a_message_beyond_the_cap_says_why_it_waits_and_starts_automatically(capped: Visitor) -> None:
    ada = capped
    busy = ada.log_in()
    send_message(busy, LONG_ANSWER_PROMPT)
    expect(find_answers(busy)).to_contain_text("Part 1")
    waiting = ada.tab()
    send_message(waiting, "Hello there")
    expect(waiting.get_by_text(WAITS)).to_be_visible()
    waiting.reload()
    expect(waiting.get_by_text(WAITS)).to_be_visible()
    busy.get_by_role("button", name="Stop").click()
    expect(find_answers(waiting).last).to_contain_text("This is a scripted demo, not an AI.")
    expect(waiting.get_by_text(WAITS)).to_be_hidden()
