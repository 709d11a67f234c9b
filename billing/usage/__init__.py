"""Use: recording it, bounding it, forgiving it; the only writer of UsageRecord, UsageWindow, UsageReset and MonthlyUsage."""

from billing.policies import holds_money
from billing.usage.folding import fold_old
from billing.usage.limits import admit, check, renew, settle
from billing.usage.recording import Recorded, UsageCall, record
from billing.usage.resets import Reset, reset, staff_reset
from billing.usage.windows import Broken, broken, publish_recent, repair

__all__ = [
    "Broken",
    "Recorded",
    "Reset",
    "UsageCall",
    "admit",
    "broken",
    "check",
    "fold_old",
    "holds_money",
    "publish_recent",
    "record",
    "renew",
    "repair",
    "reset",
    "settle",
    "staff_reset",
]
