"""Health, readiness and metrics endpoints."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from config.core.staff_permissions import can_perform_staff_act, find_second_factor_problem
from diagnostics import metrics
from diagnostics.probes import runner, servers

CACHE_SECONDS = 2.0


class _ReadinessCache:
    """Probe at most once every two seconds and process, however many callers ask."""

    def __init__(self) -> None:
        self.results: list[runner.ProbeResult] = []
        self.taken_at = float("-inf")
        self._look: asyncio.Future[list[runner.ProbeResult]] | None = None

    async def get_results(self) -> list[runner.ProbeResult]:
        loop = asyncio.get_running_loop()
        if time.monotonic() - self.taken_at < CACHE_SECONDS:
            return self.results
        if self._look is None or self._look.get_loop() is not loop or self._look.done():
            self._look = loop.run_in_executor(None, self._run_probes)
        return await asyncio.shield(self._look)

    def _run_probes(self) -> list[runner.ProbeResult]:
        self.results = runner.skip_dependents(runner.run_probes(servers.READINESS_PROBES))
        self.taken_at = time.monotonic()
        return self.results


READINESS_CACHE = _ReadinessCache()


@never_cache
@require_safe
async def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
async def readyz(request: HttpRequest) -> JsonResponse:
    results = await READINESS_CACHE.get_results()
    failed = [result.name for result in results if not result.ok]
    if runner.is_draining():
        failed.append("draining")
    body: dict[str, object] = {"status": "unavailable" if failed else "ok", "failed": failed}
    if await _may_see_details(request, database_answers="postgres" not in failed):
        body["checks"] = [asdict(result) for result in results]
    return JsonResponse(body, status=503 if failed else 200)


async def _may_see_details(request: HttpRequest, *, database_answers: bool) -> bool:
    """Allow the metrics token, or staff who may see diagnostics; without a cookie no user is looked up."""
    if metrics.has_metrics_token(request.headers.get("Authorization", "")):
        return True
    if not database_answers or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return False
    user = await request.auser()
    return await sync_to_async(_is_staff_let_in)(request, user)


def _is_staff_let_in(request: HttpRequest, user: User | AnonymousUser) -> bool:
    return can_perform_staff_act(user, "diagnostics.read") and not find_second_factor_problem(user, request)


# --- Metrics ---


@never_cache
@require_safe
def serve_metrics(request: HttpRequest) -> HttpResponse:
    """Serve metrics; without a token or a network in the settings there is nothing here."""
    if not metrics.is_scraping_enabled():
        raise Http404
    bears_token = metrics.has_metrics_token(request.headers.get("Authorization", ""))
    if not bears_token and not metrics.is_allowed_address(request.META.get("REMOTE_ADDR", "")):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    return HttpResponse(metrics.render_metrics(), content_type=CONTENT_TYPE_LATEST)
