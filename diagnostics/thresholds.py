"""Thresholds for silence and backlogs, shared by findings, doctor and dashboard."""

from __future__ import annotations

SCHEDULER_SILENT_SECONDS = 60.0  # it sends something every five seconds
WATCH_SILENT_SECONDS = 120.0  # it looks every fifteen
QUEUE_SILENT_SECONDS = {"maintenance": 90.0, "default": 900.0}  # two long exports may keep `default` busy
MAX_WAITING_TASKS = {"maintenance": 50, "default": 200, "chats": 200, "turns": 500}  # more is a backlog
WORKER_START_SECONDS = 8.0  # a worker this young need not take turns yet
