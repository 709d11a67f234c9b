"""Wiring; imports every app, imported by none."""

import gc

gc.set_threshold(
    20_000, 20, 20
)  # most of what a start makes stays; looking at it all again is a fifth of the start

from config.celery import app as celery_app  # noqa: E402

__all__ = ["celery_app"]
