"""Whatever the headers of a request say, it is answered and never with a server error; sockets just stay closed."""

from __future__ import annotations

import logging

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.core.url_safety import get_host_and_port, split_url
from config.http.handler import SingleHopASGIHandler
from copilot.files import services as files
from copilot.realtime import authentication
from copilot.realtime.authentication import HandshakeRequest
from tests.support import factories
from tests.support.rest_clients import V1, person, program
from tests.support.shares import with_files

pytestmark = [pytest.mark.attack, pytest.mark.django_db]

# A server itself refuses a Content-Length that is no number. What it hands on: any character of latin-1 but those that end a line.
LATIN = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), max_size=40)
SEEDS = {
    "Origin": ["null", "https://[your-domain]", "http://[::1", "https://a:99999", "//", "https://testserver"],
    "Referer": ["https://[x]/", "http://[", "about:blank", "https://testserver/"],
    "Forwarded": ["for=[;", 'for="[::1]:x"', "for=_x;host=[a]"],
    "X-Forwarded-For": ["[::1", ",,,", "1.2.3.4, [", "256.1.1.1"],
    "X-Forwarded-Proto": ["https, [", "ws"],
    "X-Forwarded-Host": ["[a]", "a:b:c", "[::1]:99999"],
    "X-Forwarded-Port": ["-1", "99999999999", "x"],
    "Accept": ["*/*;q=nan", "text/html;q=", ";;;", "application/json;indent=99999999", "text/event-stream"],
    "Accept-Language": ["en;q=nan", "xx-" * 200, "*;q=1.0000", "a_b@c", "en-\xff", "../../etc"],
    "Accept-Encoding": ["gzip;q=x", "br, *;q=0"],
    "Range": [
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "bytes=0-0,1-1",
        "bytes=" + "9" * 18 + "-",
        "bytes=-" + "9" * 30,
        "items=0-",
    ],
    "If-Range": ['W/"x"', '"', "Tue, 99 Foo 2026 99:99:99 GMT"],
    "If-None-Match": ["*", 'W/"', '"a", "b', ",,,"],
    "If-Match": ["*", '"', "W/x"],
    "If-Modified-Since": [
        "Tue, 99 Foo 2026 99:99:99 GMT",
        "Mon, 01 Jan 99999 00:00:00 GMT",
        "0",
        "Sun, 06 Nov 0000 08:49:37 GMT",
    ],
    "If-Unmodified-Since": ["Mon, 01 Jan 0001 00:00:00 GMT", "x"],
    "Last-Event-ID": ["0-0", "9" * 20 + "-" + "9" * 20, "-", "\xff"],
    "Authorization": [
        "Bearer",
        "Bearer ",
        "bearer ph_user_",
        "Basic %%%",
        "Share x",
        "Bearer \xff\xfe",
        "Bearer ph_bot_aaaaaaaaaa_" + "a" * 43,
    ],
    "Content-Type": [
        "multipart/form-data; boundary=",
        "application/json; charset=nope",
        "a/b;c=\xe9;=",
    ],
    "Content-Disposition": ["attachment; filename*=utf-9''%ff", 'form-data; name="a'],
    "Cookie": [
        "sessionid=",
        'a="\\',
        "sessionid=\xff; sessionid=x",
        "=;=;",
        "csrftoken=" + "a" * 64,
        "zone=%ff..%2f",
    ],
    "traceparent": ["00-", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-x-y-z", "00-" + "g" * 32 + "-1-1"],
    "tracestate": ["a=b,=", ","],
    "X-Request-ID": ["x" * 500, "\xff", "a b"],
    "Idempotency-Key": ["", "a" * 200, "\xff", "a b", "x"],
    "X-CSRFToken": ["a", "a" * 64, "\xff"],
    "Sec-Fetch-Site": ["none", "cross-site", "x"],
    "Sec-Fetch-Dest": ["iframe", "\xff"],
    "Sec-WebSocket-Key": ["x", ""],
    "Sec-WebSocket-Version": ["99", "x"],
    "Sec-WebSocket-Protocol": [",", "\xff"],
    "User-Agent": ["", "Mozilla/5.0 (" * 40, "\xff"],
    "X-HTTP-Method-Override": ["DELETE", "\xff"],
    "HX-Request": ["true"],
    "HX-Current-URL": ["https://[x]/", "http://["],
}
HEADERS = st.dictionaries(st.sampled_from(sorted(SEEDS)), st.none(), min_size=1, max_size=6).flatmap(
    lambda chosen: st.fixed_dictionaries({name: st.sampled_from(SEEDS[name]) | LATIN for name in chosen})
)
HOSTS = (
    st.sampled_from(
        ["testserver", "[", "[::1", "a:b", "[your-domain]", "", "a" * 300, "\xff", "testserver:99999"]
    )
    | LATIN
)
bounded = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def _silent():
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def asked():
    """Requests without credentials, of a person and of a program, to endpoints that read different headers."""
    file = files.store_file(factories.ada().pk, name="a.txt", content=b"0123456789", source="upload")
    share = with_files(file)
    session = factories.session(factories.ada())
    ada, key, nobody = person(factories.ada()), program(factories.ada()), Client()
    return [
        (ada, "GET", f"{V1}/files/{file.pk}/download"),
        (ada, "GET", f"/chat/{session.pk}/"),
        (ada, "POST", f"{V1}/sessions"),
        (key, "GET", f"{V1}/sessions"),
        (key, "POST", f"{V1}/turns/{session.pk}/wait"),
        (nobody, "GET", "/"),
        (nobody, "GET", "/accounts/login/"),
        (nobody, "GET", f"/share/{share.token}"),
        (nobody, "GET", f"/share/{share.token}/files/{file.pk}"),
        (nobody, "GET", "/api/schema"),
        (nobody, "POST", "/hooks/slack/a/"),
        (nobody, "POST", "/v1/chat/completions"),
    ]


@bounded
@given(headers=HEADERS)
def test_no_header_is_a_server_error(asked, headers):
    for client, method, path in asked:
        client.raise_request_exception = False
        response = client.generic(method, path, b"", headers=headers)
        if response.streaming and not response.is_async:
            list(response.streaming_content)
        assert response.status_code < 500 or response.status_code == 503, (method, path, headers)


@bounded
@given(host=HOSTS)
def test_no_host_is_a_server_error(host):
    client = Client(raise_request_exception=False)
    for path in ("/", "/api/v1/sessions", "/accounts/login/"):
        assert client.get(path, headers={"Host": host}).status_code < 500, host


@bounded
@given(
    headers=HEADERS, query=LATIN | st.sampled_from(["ticket=", "ticket=%ff", "ticket=a&ticket=b", "&" * 500])
)
def test_no_header_of_a_socket_raises(headers, query):
    said = {name.lower(): value for name, value in headers.items()}
    assert (
        authentication.authenticate_handshake(HandshakeRequest({"host": "testserver", **said}, query)) is None
    )


@bounded
@given(
    text=LATIN | st.text(max_size=40) | st.sampled_from([one for seeds in SEEDS.values() for one in seeds])
)
def test_no_text_makes_the_parser_of_addresses_raise(text):
    parts = split_url(text)
    assert parts is None or isinstance(parts.port, int | None)
    assert isinstance(get_host_and_port(text), str)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "kind", ["text/plain; charset*=x''%", "a/b; c*='", "multipart/form-data; boundary*=nope''a", "\xff"]
)
async def test_a_content_type_that_cannot_be_read_is_no_server_error(kind):
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/nowhere", "query_string": b""}
    headers = [(b"content-type", kind.encode("latin-1")), (b"host", b"testserver")]
    door = ApplicationCommunicator(
        SingleHopASGIHandler(), scope | {"headers": headers, "client": ("192.0.2.1", 1)}
    )
    await door.send_input({"type": "http.request", "body": b"", "more_body": False})
    assert (await door.receive_output(20))["status"] in (400, 404)
    await door.wait(20)
