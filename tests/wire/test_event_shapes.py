"""Golden shapes of what clients are told about the model: a change here is a change of the API (A2.6)."""

from __future__ import annotations

import msgspec
import pytest

from copilot.realtime.events import (
    Event,
    ModelHealed,
    ModelRetrying,
    ModelSwitched,
    decode_event,
    encode_event,
)

SHAPES: list[tuple[Event, dict[str, object]]] = [
    (
        ModelRetrying(failure_class="overloaded", label="Busy", delay_seconds=2.0, attempt=1, attempts=3),
        {
            "kind": "model.retrying",
            "failure_class": "overloaded",
            "label": "Busy",
            "delay_seconds": 2.0,
            "attempt": 1,
            "attempts": 3,
        },
    ),
    (
        ModelHealed(
            model="Large", healing="signature", failure_class="thinking_signature_invalid", label="Discarded"
        ),
        {
            "kind": "model.healed",
            "model": "Large",
            "healing": "signature",
            "failure_class": "thinking_signature_invalid",
            "label": "Discarded",
        },
    ),
    (
        ModelSwitched(from_model="Large", to_model="Small", failure_class="quota_exhausted", label="Used up"),
        {
            "kind": "model.switched",
            "from_model": "Large",
            "to_model": "Small",
            "failure_class": "quota_exhausted",
            "label": "Used up",
        },
    ),
]


@pytest.mark.parametrize(("event", "shape"), SHAPES, ids=lambda given: getattr(given, "kind", ""))
def test_an_event_about_the_model_has_its_golden_shape(event: Event, shape: dict[str, object]) -> None:
    logged = encode_event(event, session_id="s", turn_id="t")
    assert msgspec.json.decode(logged) == {"session_id": "s", "turn_id": "t"} | shape
    assert decode_event(logged) == event
