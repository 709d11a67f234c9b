"""The scope that a key needs for each REST call; a new endpoint has to be added to the table (A20.6)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from django.http.response import HttpResponseBase
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django import DjangoDbBlocker

from config.core.api.views import RequiresScopes
from copilot.accounts import api_keys
from tests.support import database_cleanup, factories
from tests.support.rest_clients import NOBODYS, program

READS, WRITES = ("get",), ("post", "put", "patch", "delete")
NOBODY = ("no key",)
# By the beginning of a path, the first that fits: what a key needs in order to read, and to write.
TABLE: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("admin/diagnostics", ("staff",), NOBODY),
    ("billing/admin", ("staff",), NOBODY),
    ("billing", ("read",), ("billing",)),
    ("api-keys", ("read",), NOBODY),  # a key never makes or changes keys
    ("ws-tickets", (), ("read", "chat")),  # a socket does both
    ("linking", ("read",), ("manage",)),
    ("memories", ("read",), ("manage",)),
    ("schedules", ("read",), ("manage",)),
    ("mcp-servers", ("read",), ("manage",)),
    ("exports", ("read",), ("manage",)),
    ("sessions/import", (), ("manage",)),
    ("sessions/<uuid:session_id>/share", (), ("manage",)),
    ("files/<uuid:file_id>/share", (), ("manage",)),
    ("files/zip", (), ("read",)),  # nothing is written: many ids do not fit into an address
    ("agents/<uuid:agent_id>/runs", (), ("chat",)),  # it starts a conversation
    ("agents/<uuid:agent_id>/builder", (), ("chat",)),
    ("agents", ("read",), ("manage",)),
    ("", ("read",), ("chat",)),
)


def doors(patterns: list[URLPattern | URLResolver], before: str = "") -> Iterator[tuple[str, type]]:
    for one in patterns:
        path = before + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from doors(one.url_patterns, path)
        elif path.startswith("api/v1/") and hasattr(one.callback, "view_class"):
            yield path.removeprefix("api/v1/"), one.callback.view_class


def wanted(path: str, method: str) -> tuple[str, ...]:
    reads, writes = next((reads, writes) for start, reads, writes in TABLE if path.startswith(start))
    return reads if method in READS else writes


def filled(path: str) -> str:
    """A path that names nothing which exists."""
    ids = {"uuid": NOBODYS, "int": "1"}
    return re.sub(r"<(?:(\w+):)?\w+>", lambda found: ids.get(found[1], "nothing"), path)


CALLS = [
    pytest.param(path, method, view, id=f"{method} {path}")
    for path, view in doors(get_resolver().url_patterns)
    for method in (*READS, *WRITES)
    if hasattr(view, method) and not path.startswith("public/")
]


@pytest.mark.parametrize(("path", "method", "view"), CALLS)
def test_every_call_asks_a_key_for_the_scope_of_its_kind(path: str, method: str, view: type) -> None:
    """A20.6: the whole of it, by path"""
    door = view()
    assert isinstance(door, RequiresScopes)
    may = method in READS or door.keys_may_write
    assert (door.scopes_for(method.upper()) if may else NOBODY) == wanted(path, method)


def test_the_table_is_about_something() -> None:
    """A20.6: enough endpoints were found, and each line of the table matches one"""
    paths = {param.values[0] for param in CALLS}
    assert len(paths) > 60
    for start, _, _ in TABLE:
        assert any(path.startswith(start) for path in paths)


# --- by hand -----------------------------------------------------------------------------------------

# Paths that clients of other vendors call; a key alone opens them.
COMPATIBLE = [
    ("get", "/v1/models"),
    ("get", f"/v1/responses/{NOBODYS}"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/responses"),
    ("post", "/api/ai/chat"),
    ("get", f"/api/ai/chat/{NOBODYS}/stream"),
]
ROUTES = [
    *(
        pytest.param(method, f"/api/v1/{filled(path)}", wanted(path, method), id=f"{method} {path}")
        for path, method, _ in (param.values for param in CALLS)
    ),
    *(
        pytest.param(method, path, ("read",) if method == "get" else ("chat",), id=f"{method} {path}")
        for method, path in COMPATIBLE
    ),
]


@pytest.fixture(name="keys", scope="module")
def keys_fixture(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, Client]]:
    """Keys of one member of staff: each lacks one scope."""
    with django_db_blocker.unblock():
        user = factories.user("scopes", is_staff=True)
        yield {
            lacking: program(user, *(scope for scope in api_keys.SCOPES if scope != lacking))
            for lacking in api_keys.SCOPES
        }
        user.delete()
        database_cleanup.delete_audit_events()


@pytest.mark.attack
@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path", "needed"), ROUTES)
def test_a_key_that_lacks_the_scope_is_refused_by_name_and_any_other_is_not(
    method: str, path: str, needed: tuple[str, ...], keys: dict[str, Client]
) -> None:
    """A20.6: every route and every scope, over the wire"""
    told = {}
    for lacking, client in keys.items():
        response = getattr(client, method)(path, content_type="application/json")
        error = _error(response)
        refused = response.status_code == 403 and error.get("scope", "") in ("", lacking)
        told[lacking] = error.get("code") if refused else ""
    expected = {scope: "insufficient_scope" if scope in needed else "" for scope in keys}
    assert told == (dict.fromkeys(keys, "session_required") if needed == NOBODY else expected)


def _error(response: HttpResponseBase) -> dict[str, object]:
    if response.streaming or not response["Content-Type"].startswith("application/json"):
        return {}
    found = json.loads(response.content)
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}
