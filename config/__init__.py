"""Wiring; imports every app, imported by none."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
