"""Wiring: settings, URLs, ASGI and Celery. The ground that every app may import is `config.core`."""

import gc

gc.set_threshold(
    20_000, 20, 20
)  # most of what a start makes stays; looking at it again and again is a fifth of the start
