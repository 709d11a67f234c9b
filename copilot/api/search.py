"""Search over REST: chats by their titles, messages by their words (W2.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import queries, searching
from copilot.api.doors import Door
from copilot.api.parsing import Clean, Query, query_of

TITLES = 8


class SearchQuery(Query):
    q: Annotated[Clean, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = searching.HITS


@dataclass(frozen=True, kw_only=True)
class Found:
    sessions: list[queries.SessionView]  # whose titles hold the text
    messages: list[searching.Hit]  # that have every word, or begin to


class SearchView(Door):
    @operation("Search your chats and messages", answers={200: Found}, query=SearchQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, SearchQuery)
        titled = queries.sessions_page(self.caller_id, q=asked.q, limit=TITLES).items
        return answer(
            Found(sessions=titled, messages=searching.hits(self.caller_id, asked.q, limit=asked.limit))
        )
