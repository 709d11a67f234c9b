"""One free question over HTTP to somebody else's service: does it answer, and does it take our key (D17)."""

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
    """What came back; a refusal is an answer too, silence is none."""

    status: int  # 0: nobody answered
    body: Mapping[str, object]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def send_request(url: str, headers: Mapping[str, str], *, post: bool = False) -> ProbeAnswer:
    """Neither the address nor the headers are ever told: they may hold the key."""
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
    """The same troubles everywhere: nobody there, the key refused or too weak, something else."""
    if answer.is_success:
        return ProbeFinding(detail="reachable, key accepted")
    if not answer.status:
        return ProbeFinding(
            status="fail", detail="cannot be reached", next_step="Check the network and its address."
        )
    if answer.status == 403 and 403 in refusals:
        return ProbeFinding(
            status="fail",
            detail="the key is known, and may not do this",
            next_step=f"Give the key of {variable} the rights it needs, or set another.",
        )
    if answer.status in refusals:
        return ProbeFinding(status="fail", detail="the key was refused", next_step=f"Set a valid {variable}.")
    return ProbeFinding(
        status="warn",
        detail=f"answered {answer.status}",
        next_step="Try again, then look at its status page.",
    )


def _decode_json(text: bytes) -> Mapping[str, object]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
