"""Connect receivers of Django signals for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.dispatch import Signal


@contextmanager
def receiving(signal: Signal, *receivers: Callable[..., object]) -> Iterator[None]:
    for receiver in receivers:
        signal.connect(receiver)
    try:
        yield
    finally:
        for receiver in receivers:
            signal.disconnect(receiver)


@contextmanager
def receiving_only(signal: Signal, *receivers: Callable[..., object]) -> Iterator[None]:
    """Call only these receivers; the product's own are connected again afterwards."""
    own, signal.receivers = signal.receivers, []
    signal.sender_receivers_cache.clear()
    try:
        with receiving(signal, *receivers):
            yield
    finally:
        signal.receivers = own
        signal.sender_receivers_cache.clear()
