"""Where a browser may be sent after Stripe (B15.6): our own page, and what is listed; nothing that only looks like it."""

from __future__ import annotations

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from billing import redirects
from billing.api.views import BillingApiView
from billing.errors import InvalidRequest
from billing.models import TopUp
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, person

ORIGINS = ["https://good.example", "http://local.example:8000"]
HOSTILE = [
    "https://good.example.evil.test/",
    "https://good.example@evil.test/",
    "https://evil.test/https://good.example",
    "https://user:pass@good.example/",
    "https://@good.example/",
    "http://good.example/",  # listed as https
    "https://local.example:8000/",  # listed as http
    "http://local.example/",  # another port
    "https://good.example:444/",
    "https://good.example:99999/",
    "//good.example/",
    "/billing/plan",
    "good.example/",
    "javascript:alert(1)",
    "javascript://good.example/%0aalert(1)",
    "data:text/html,x",
    "ftp://good.example/",
    "https:good.example/",
    "https:/good.example/",
    "https:\\\\good.example/",
    "https://good.example\\@evil.test/",
    "https://evil.test\\.good.example/",
    "https://good.example /",
    " https://good.example/",
    "https://good.example/\n",
    "https://good.example/\x00",
    "https://good.exam\tple/",
    "https://xn--good-example/",
    "https://ｇood.example/",
    "https://good.example。evil.test/",
    "https://goo%64.example/",
    "https://[::1]/",
    "https://good.example./",
    "https://",
    "https://?good.example",
    "https://#good.example",
    f"https://good.example/{'x' * 2_000}",
]
WAYS = [
    ("top-ups", {"amount_cents": 1_000}, "success_url"),
    ("top-ups", {"amount_cents": 1_000}, "cancel_url"),
    ("subscription", {"tier": "PRO"}, "success_url"),
    ("subscription", {"tier": "PRO"}, "cancel_url"),
    ("portal", {}, "return_url"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "body", "name"), WAYS)
def test_hostile_addresses_are_refused_before_anything_happens(
    stripe: Fake, path: str, body: dict[str, object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B15.c3: as success, cancel or return URL: 400 and no Stripe call."""
    monkeypatch.setattr(BillingApiView, "writes_per_minute", len(HOSTILE))
    client = person(factories.ada())
    with override_settings(BILLING_REDIRECT_ORIGINS=ORIGINS):
        answers = {
            url: client.post(f"{V1}/billing/{path}", body | {name: url}, content_type=JSON) for url in HOSTILE
        }
    wrong = {url: code_of(answer) for url, answer in answers.items() if answer.status_code != 400}
    assert wrong == {}
    assert {code_of(answer) for answer in answers.values()} == {"invalid_request"}
    assert stripe.calls == []
    assert not TopUp.objects.exists()


@pytest.mark.django_db
def test_a_listed_address_is_taken_as_it_is(stripe: Fake) -> None:
    """B15.6: normalised origins are compared; path and query stay as they were sent."""
    wanted = {
        "amount_cents": 1_000,
        "success_url": "HTTPS://Good.Example:443/back?x=1#y",
        "cancel_url": "http://local.example:8000/no",
    }
    with override_settings(BILLING_REDIRECT_ORIGINS=ORIGINS):
        answer = person(factories.ada()).post(f"{V1}/billing/top-ups", wanted, content_type=JSON)
    assert answer.status_code == 201
    session = stripe.all("checkout.session")[0]
    assert (session["success_url"], session["cancel_url"]) == (wanted["success_url"], wanted["cancel_url"])


@given(
    st.text(max_size=40)
    | st.from_regex(
        r"(https?|HTTPS)://[a-z@.:\\/\[\]%]{0,20}good\.example[a-z@.:0-9/?#]{0,20}", fullmatch=True
    )
)
def test_what_is_accepted_has_a_listed_origin(url: str) -> None:
    """B20.5: redirect URLs, whatever they are: accepted means listed, as a browser reads it."""
    with override_settings(BILLING_REDIRECT_ORIGINS=ORIGINS):
        try:
            accepted = redirects.check_redirect_url("url", url)
        except InvalidRequest:
            return
    assert accepted == "" or any(
        accepted.lower().removeprefix(start)[:1] in ("", "/", "?", "#")
        for origin in ORIGINS
        for start in (origin, f"{origin}:443")
        if accepted.lower().startswith(start)
    )
