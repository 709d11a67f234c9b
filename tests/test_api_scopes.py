"""Which scope a key needs for each call of REST, for all of them: a new door has to fit into the table (A20.6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from copilot.api.authentication import AsksScopes

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
    assert isinstance(door, AsksScopes)
    may = method in READS or door.keys_may_write
    assert (door.scopes_for(method.upper()) if may else NOBODY) == wanted(path, method)


def test_the_table_is_about_something() -> None:
    """A20.6: enough doors were found, and each line of the table is some door's"""
    paths = {param.values[0] for param in CALLS}
    assert len(paths) > 60
    for start, _, _ in TABLE:
        assert any(path.startswith(start) for path in paths)  # type: ignore[union-attr]
