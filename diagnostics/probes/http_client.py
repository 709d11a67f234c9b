"""Send one free HTTP request to an external service and judge its answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diagnostics.probes.runner import SLOW_TIMEOUT_SECONDS, ProbeFinding

MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """The answer of a service; status 0 stands for none."""

    status: int  # 0: no answer
    body: Mapping[str, object]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def send_request(url: str, headers: Mapping[str, str], *, post: bool = False) -> ProbeAnswer:
    """Send a request. Neither URL nor headers are ever shown, because they may hold the key."""
    request = urllib.request.Request(url, headers=dict(headers), data=b"" if post else None)  # noqa: S310 - our settings
    try:
        with urllib.request.urlopen(request, timeout=SLOW_TIMEOUT_SECONDS) as answer:  # noqa: S310 - our settings
            return ProbeAnswer(status=answer.status, body=_decode_json(answer.read(MAX_ANSWER_BYTES)))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return ProbeAnswer(status=refusal.code, body={})
    except (urllib.error.URLError, TimeoutError, OSError):
        return ProbeAnswer(status=0, body={})


def judge_answer(
    answer: ProbeAnswer, *, variable: str, refusals: Collection[int] = (401, 403)
) -> ProbeFinding:
    """Judge an answer by what can go wrong everywhere: unreachable, key refused, missing permissions, other errors."""
    if answer.is_success:
        return ProbeFinding(detail="reachable, key accepted")
    if not answer.status:
        return ProbeFinding(
            status="fail", detail="cannot be reached", next_step="Check the network and its address."
        )
    if answer.status == 403 and 403 in refusals:
        return ProbeFinding(
            status="fail",
            detail="the key is valid but lacks permissions",
            next_step=f"Grant the key of {variable} the permissions it needs, or set another.",
        )
    if answer.status in refusals:
        return ProbeFinding(status="fail", detail="the key was refused", next_step=f"Set a valid {variable}.")
    return ProbeFinding(
        status="warn",
        detail=f"answered {answer.status}",
        next_step="Try again, then check its status page.",
    )


def _decode_json(text: bytes) -> Mapping[str, object]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
