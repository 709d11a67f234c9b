"""Credits over REST: balance, statement page by page, and all of it as a file (B9.9, B16)."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import date
from typing import Annotated

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from pydantic import Field
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from billing import queries
from billing.api.doors import Door
from billing.api.parsing import Query, query_of
from billing.queries import Credits, Entry, Filters, Statement
from billing.rest import answer, operation

COLUMNS = ("date_utc", "kind", "reason", "reference", "amount_cents", "balance_after_cents", "entry_id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets would run
KINDS = "^(GRANT|TOP_UP|SPEND|REFUND|EXPIRY|REVERSAL|REINSTATEMENT)$"


class Wanted(Query):
    kind: Annotated[str, Field(pattern=KINDS)] | None = None
    since: date | None = None
    until: date | None = None

    def filters(self) -> Filters:
        return Filters(kind=self.kind or "", since=self.since, until=self.until)


class WantedPage(Wanted):
    cursor: Annotated[str, Field(max_length=100)] = ""
    limit: Annotated[int, Field(ge=1, le=queries.MOST_ENTRIES)] = queries.PAGE_ENTRIES


class Csv(BaseRenderer):
    media_type = "text/csv"
    format = "csv"


class BillingCreditsView(Door):
    @operation("Balance, debt and what expires soon", answers={200: Credits})
    def get(self, request: Request) -> HttpResponse:
        return answer(queries.credits(self.caller.pk))


class BillingStatementView(Door):
    @operation("Movements of credit, newest first", answers={200: Statement}, query=WantedPage)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, WantedPage)
        page = queries.statement(
            self.caller.pk, filters=wanted.filters(), cursor=wanted.cursor, limit=wanted.limit
        )
        return answer(page)


class BillingStatementFileView(Door):
    renderer_classes = [Csv]

    @operation("The statement as CSV", answers={(200, "text/csv"): OpenApiTypes.STR}, query=Wanted)
    def get(self, request: Request) -> StreamingHttpResponse:
        chunks = queries.entry_chunks(self.caller.pk, query_of(request, Wanted).filters())
        lines = _texts(chunks)
        served_async = isinstance(request._request, ASGIRequest)
        response = StreamingHttpResponse(
            _one_by_one(lines) if served_async else lines, content_type="text/csv; charset=utf-8"
        )
        response["Content-Disposition"] = 'attachment; filename="statement.csv"'
        return response


async def _one_by_one(texts: Iterator[str]) -> AsyncIterator[str]:
    """Read when it is wanted, on the thread that may wait for the database."""
    read = sync_to_async(lambda: next(texts, None))
    while (text := await read()) is not None:
        yield text


def _texts(chunks: Iterable[list[Entry]]) -> Iterator[str]:
    yield _csv([COLUMNS])
    for chunk in chunks:
        yield _csv([_line(entry) for entry in chunk])


def _line(entry: Entry) -> tuple[str | int, ...]:
    return (
        f"{entry.created_at:%Y-%m-%dT%H:%M:%SZ}",
        entry.kind,
        _harmless(entry.reason),
        _harmless(entry.reference),
        entry.amount_cents,
        entry.balance_after_cents,
        entry.id,
    )


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def _csv(lines: Iterable[tuple[str | int, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()
