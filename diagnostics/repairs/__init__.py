"""The only module that changes anything, and only by copilot's own functions; every call is recorded (D8, D9)."""

from diagnostics.audit import Actor
from diagnostics.repairs.asking import PreviewRefused, RepairBody
from diagnostics.repairs.performing import ACTIONS, perform
from diagnostics.repairs.results import PreviewGone, Result, Skip

__all__ = ["ACTIONS", "Actor", "PreviewGone", "PreviewRefused", "RepairBody", "Result", "Skip", "perform"]
