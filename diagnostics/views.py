"""Is this process alive, is it ready for traffic, and what has been counted (D15, D16)."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import asdict
from ipaddress import ip_address, ip_network

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from diagnostics import metrics
from diagnostics.probes import running, servers

CACHE_SECONDS = 2.0


class _Readiness:
    """At most one look per two seconds and process, however many ask (A-D15.3)."""

    def __init__(self) -> None:
        self.results: list[running.Result] = []
        self.taken_at = float("-inf")
        self._look: asyncio.Future[list[running.Result]] | None = None

    async def now(self) -> list[running.Result]:
        loop = asyncio.get_running_loop()
        if time.monotonic() - self.taken_at < CACHE_SECONDS:
            return self.results
        if self._look is None or self._look.get_loop() is not loop or self._look.done():
            self._look = loop.run_in_executor(None, self._take)
        return await asyncio.shield(self._look)

    def _take(self) -> list[running.Result]:
        self.results = running.without_echo(running.run(servers.READINESS))
        self.taken_at = time.monotonic()
        return self.results


READINESS = _Readiness()


@never_cache
@require_safe
async def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
async def readyz(request: HttpRequest) -> JsonResponse:
    results = await READINESS.now()
    failed = [result.name for result in results if not result.ok]
    if running.draining():
        failed.append("draining")
    body: dict[str, object] = {"status": "unavailable" if failed else "ok", "failed": failed}
    if await _may_see_details(request, database_answers="postgres" not in failed):
        body["checks"] = [asdict(result) for result in results]
    return JsonResponse(body, status=503 if failed else 200)


async def _may_see_details(request: HttpRequest, *, database_answers: bool) -> bool:
    """The holder of the metrics token, or staff; without a cookie nobody is looked up."""
    if _bears_the_token(request):
        return True
    if not database_answers or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return False
    user = await request.auser()
    return user.is_active and user.is_staff


# --- metrics -----------------------------------------------------------------------------------------


@never_cache
@require_safe
def scrape(request: HttpRequest) -> HttpResponse:
    """Off until somebody is allowed to look: without a token or a network there is nothing here."""
    if not settings.METRICS_TOKEN and not settings.METRICS_ALLOWED_CIDRS:
        raise Http404
    if not _bears_the_token(request) and not _is_allowed_address(request.META.get("REMOTE_ADDR", "")):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    return HttpResponse(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def _bears_the_token(request: HttpRequest) -> bool:
    scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
    token = settings.METRICS_TOKEN
    return bool(token) and scheme == "Bearer" and hmac.compare_digest(shown.encode(), token.encode())


def _is_allowed_address(address: str) -> bool:
    try:
        caller = ip_address(address)
    except ValueError:
        return False
    return any(caller in ip_network(network, strict=False) for network in settings.METRICS_ALLOWED_CIDRS)
