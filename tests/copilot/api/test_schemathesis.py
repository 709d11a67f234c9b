"""The OpenAPI document and the endpoints agree, whatever is sent: no 500, only documented responses (E3)."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import given
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

from billing.api import views as api_base
from copilot.accounts import api_keys
from copilot.api import authentication
from copilot.files import services as files
from copilot.models import Session
from tests.support import factories
from tests.support.openapi_checks import CHECKS, make_bounded_settings, serve_whole_response
from tests.support.race_repeats import rounds
from tests.support.rest_clients import V1

pytestmark = pytest.mark.attack

# Streams have tests of their own over ASGI; Stripe's webhook is 503 without a key (B19.1), and with one all others ask Stripe.
ELSEWHERE = rf"{V1}/(sessions/.*/stream|turns/.*/wait|billing/stripe/webhook)$"


@pytest.fixture
def token(transactional_db, monkeypatch):
    """A program whose rate is of no interest here."""
    monkeypatch.setattr(authentication, "CALLS_PER_MINUTE", 10**9)
    monkeypatch.setattr(api_base.BillingApiView, "reads_per_minute", 10**9)
    monkeypatch.setattr(api_base.BillingApiView, "writes_per_minute", 10**9)
    return api_keys.create_api_key(factories.ada()).token


@pytest.fixture
def operations(transactional_db):
    document = schemathesis.openapi.from_wsgi("/api/schema", serve_whole_response)
    found = document.include(path_regex=rf"^{V1}/").exclude(path_regex=ELSEWHERE)
    return [result.ok() for result in found.get_all_operations() if isinstance(result, Ok)]


def belongings() -> dict[str, str]:
    """Ids of Ada's own, for every path: behind the 404 there is more to break."""
    session = factories.session(factories.ada())
    turn = factories.turn(session)
    file = files.store_file(factories.ada().pk, name="a.txt", content=b"a", source="upload")
    waiting = factories.pending(session, "wait")
    return {
        "session_id": str(session.pk),
        "turn_id": str(turn.pk),
        "file_id": str(file.pk),
        "message_id": str(waiting.pk),
    }


@rounds(2, 12)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_documented_and_none_is_a_server_error(token, operations, mode, rounds):
    own = belongings()
    assert len(operations) > 20
    for operation in operations:

        @make_bounded_settings(rounds)
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Case) -> None:
            Session.objects.update(deleted_at=None)
            case.path_parameters.update({name: own[name] for name in case.path_parameters if name in own})
            case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS)

        call()
