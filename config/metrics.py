"""What every request counts; every label comes from a closed set (D16)."""

from __future__ import annotations

from django.http import HttpRequest
from prometheus_client import Counter, Histogram

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

http_requests = Counter(
    "pilothouse_http_requests_total",
    "Requests by route (as our URLs are written; unknown ones are other), method and class of status.",
    ["route", "method", "status_class"],
)
http_request_seconds = Histogram(
    "pilothouse_http_request_seconds", "From a request's arrival to the head of its answer.", buckets=SECONDS
)


def route_of(request: HttpRequest) -> str:
    """The pattern, never the path: a stranger cannot make series."""
    match = request.resolver_match
    return match.route or "/" if match else "other"


def count_request(request: HttpRequest, status: int, seconds: float) -> None:
    method = request.method if request.method in METHODS else "other"
    http_requests.labels(route_of(request), method, f"{status // 100}xx").inc()
    http_request_seconds.observe(seconds)
