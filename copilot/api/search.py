"""REST view that searches chats by title and messages by their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, parse_query
from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.chat import search
from copilot.chat import selectors as chat_selectors

MAX_TITLE_HITS = 8


class SearchQuery(QueryParams):
    q: Annotated[CleanText, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = search.MAX_HITS


@dataclass(frozen=True, kw_only=True)
class Found:
    sessions: list[chat_selectors.SessionPayload]  # sessions whose title contains the text
    messages: list[search.SearchHit]  # messages with every word, or with words that begin so


class SearchView(AuthenticatedApiView):
    @document_operation("Search your chats and messages", answers={200: Found}, query=SearchQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SearchQuery)
        titled = chat_selectors.list_sessions_page(self.caller_id, q=query.q, limit=MAX_TITLE_HITS).items
        return respond_json(
            Found(
                sessions=titled, messages=search.search_messages(self.caller_id, query.q, limit=query.limit)
            )
        )
