"""Somebody on call, in front of the real page: sees what is listed and found, and repairs by its forms (D13)."""

from __future__ import annotations

import re
import time
from typing import Any
from uuid import UUID

import httpx

HOME = "/admin/diagnostics/"
COOKIE = "sessionid"
_TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
_CHANGED = re.compile(r": (\d+) changed")
_PREVIEW = re.compile(r'name="preview_id" value="([^"]+)"')


class Staff:
    """One administrator, signed in at one web process."""

    def __init__(self, name: str, url: str) -> None:
        from django.contrib.auth.models import User
        from django.test import Client

        self.name = name
        user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": True, "is_superuser": True})
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        cookies = {COOKIE: client.cookies[COOKIE].value}
        self._http = httpx.Client(base_url=url, cookies=cookies, timeout=60)

    def look(self, place: str) -> str:
        """`place` is a tab, or a part of one: `running?only=cancel_backlog`."""
        slug, asks, query = place.partition("?")
        answer = self._patiently("GET", f"{HOME}{slug}{'/' if slug else ''}{asks}{query}")
        assert answer.status_code == 200, f"{place}: {answer.status_code}"
        return answer.text

    def lists(self, place: str, identifier: UUID) -> bool:
        return str(identifier) in self.look(place)

    def finds(self, code: str) -> bool:
        return f"<code>{code}</code>" in self.look("")

    def repair(self, place: str, action: str, *ids: UUID) -> int:
        """Asked first, as the page asks; how many were changed."""
        return self.confirm(*self.ask(place, action, *ids))

    def ask(self, place: str, action: str, *ids: UUID) -> tuple[str, dict[str, object]]:
        """The dialog, and what it was opened with."""
        tab = place.partition("?")[0]
        asked: dict[str, object] = {"tab": tab, "action": action, "ids": [str(one) for one in ids]}
        return self._post("confirm/", asked | {"csrfmiddlewaretoken": self._token(self.look(place))}), asked

    def confirm(self, shown: str, asked: dict[str, object]) -> int:
        """Approve everything that is read."""
        preview = _PREVIEW.search(shown)
        count = re.search(r'pattern="(\d+)"', shown)
        fields = asked | {"reason": "the fault run mends it", "csrfmiddlewaretoken": self._token(shown)}
        fields |= {"preview_id": preview[1]} if preview else {}
        fields |= {"count": count[1]} if count else {}
        done = self._post("apply/", fields)
        changed = _CHANGED.search(done)
        if changed is None:
            raise AssertionError(f"{asked['action']} was not done: {_words(done)}")
        return int(changed[1])

    def _post(self, where: str, fields: dict[str, object]) -> str:
        answer = self._patiently("POST", f"{HOME}{where}", data=fields, headers={"X-Fragment": "1"})
        assert answer.status_code == 200, f"{where}: {answer.status_code}"
        return answer.text

    def _patiently(self, method: str, url: str, **fields: Any) -> httpx.Response:
        """Who was too quick waits as long as he is told (D14)."""
        answer = self._http.request(method, url, **fields)
        while answer.status_code == 429:
            time.sleep(int(answer.headers["Retry-After"]))
            answer = self._http.request(method, url, **fields)
        return answer

    def _token(self, page: str) -> str:
        found = _TOKEN.search(page)
        assert found is not None, "a page without a form"
        return found[1]


def _words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())[:300]
