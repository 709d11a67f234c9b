"""What a snapshot means: a pure function from figures to findings, the gravest first (D12)."""

from diagnostics.findings.figures import Snapshot, Summary, Worker, WorkerStatus
from diagnostics.findings.rules import MOST_IDS, Finding, Severity, evaluate

__all__ = [
    "MOST_IDS",
    "Finding",
    "Severity",
    "Snapshot",
    "Summary",
    "Worker",
    "WorkerStatus",
    "evaluate",
]
