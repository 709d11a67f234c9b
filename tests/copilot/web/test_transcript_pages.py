"""Pages of conversations: no row takes its page down, and what the public may open is rendered once."""

from __future__ import annotations

import html
import threading

import pytest

from config.core.errors import TooManyRequests
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from copilot.web import markdown, share_page, transcript
from tests.support.rest_clients import person
from tests.support.shares import shared_page, spoken, stored, with_files

pytestmark = [pytest.mark.attack, pytest.mark.django_db]
BROKEN_SENTENCE = "Open https://[your-domain]/setup and go on."


@pytest.fixture(autouse=True)
def _nothing_kept():
    share_page.share_html_cache.clear()


def publish(session):
    return sharing.publish_session(session.owner_id, session.pk, ShareRequest(), ShareTerms())


def test_a_chat_and_a_share_with_a_broken_address_are_shown():
    session = spoken(BROKEN_SENTENCE, BROKEN_SENTENCE)
    page = person(session.owner).get(f"/chat/{session.pk}/")
    assert page.status_code == 200
    assert page.content.count(b"[your-domain]") >= 2
    public = shared_page(publish(session))
    assert public.status_code == 200
    assert public.content.count(b"[your-domain]") >= 2


def test_a_row_that_cannot_be_prepared_is_shown_as_written(monkeypatch):
    session = spoken("Hello?", "An *odd* answer")
    share = publish(session)

    def broken(*_, **__):
        raise KeyError("odd")

    monkeypatch.setattr(markdown, "render", broken)
    page = person(session.owner).get(f"/chat/{session.pk}/").content.decode()
    assert "An *odd* answer" in page
    assert "Couldn't format this message. Here's the plain text." in page
    public = shared_page(share).content.decode()
    assert "An *odd* answer" in public
    assert "Couldn't format this message. Here's the plain text." in public


def test_a_row_whose_template_fails_leaves_the_others_shown(monkeypatch, settings):
    session = spoken("Hello?", "A good answer", "And?", "Another answer")
    whole = transcript.build_items

    def one_broken(*args, **options):
        items = whole(*args, **options)
        return [transcript.replace(items[0], template="copilot/no_such_row.html"), *items[1:]]

    monkeypatch.setattr(transcript, "build_items", one_broken)
    page = person(session.owner).get(f"/chat/{session.pk}/")
    assert page.status_code == 200
    assert "This message can't be shown." in html.unescape(page.content.decode())
    assert "Another answer" in page.content.decode()


def test_a_share_is_rendered_once_until_its_files_change(monkeypatch):
    file = stored("a.txt")
    share = with_files(file, stored("b.txt", b"b"))
    calls = count_renders(monkeypatch)
    first = shared_page(share)
    assert len(calls) == 1
    assert shared_page(share).content == first.content
    assert len(calls) == 1
    file.delete()
    assert shared_page(share).content != first.content
    assert len(calls) == 2


def test_a_share_page_stops_rendering_when_its_budget_is_spent(monkeypatch):
    session = spoken(*["Why?", "*because*"] * 20)
    share = publish(session)
    monkeypatch.setattr(markdown.PageBudget, "spend", lambda self, _: setattr(self, "_seconds_left", 0))
    page = shared_page(share).content.decode()
    assert page.count("<em>because</em>") == 1
    assert page.count("as-written") == 19


def test_shares_are_rendered_one_at_a_time_and_late_ones_are_asked_to_come_back():
    cache = share_page.ShareHtmlCache(max_bytes=10**6, wait_seconds=0.01)
    started, release = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert release.wait(10)
        return "slow"

    thread = threading.Thread(target=cache.get_or_render, args=(("a",), slow))
    thread.start()
    assert started.wait(10)
    with pytest.raises(TooManyRequests) as refused:
        cache.get_or_render(("b",), lambda: "b")
    assert refused.value.retry_after_seconds == 5
    release.set()
    thread.join()
    assert cache.get_or_render(("a",), lambda: "made again") == "slow"
    assert cache.get_or_render(("b",), lambda: "b") == "b"


def test_kept_pages_take_bounded_memory():
    cache = share_page.ShareHtmlCache(max_bytes=2000)
    for number in range(200):
        cache.get_or_render((str(number),), lambda number=number: f"{number}" * 50)
    assert cache._bytes <= 2000
    assert cache._bytes == sum(map(len, cache._pages.values()))
    assert ("199",) in cache._pages
    assert ("0",) not in cache._pages
    cache.get_or_render(("huge",), lambda: "".join(map(str, range(5000))))
    assert cache._bytes <= 2000


def count_renders(monkeypatch) -> list[str]:
    calls: list[str] = []
    render = markdown.render

    def counted(text, **options):
        calls.append(text)
        return render(text, **options)

    monkeypatch.setattr(markdown, "render", counted)
    return calls
