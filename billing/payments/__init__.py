"""Money that comes in, and money that is taken back: the only writer of TopUp and AutoTopUp (B10)."""

from billing.payments.automatic import (
    AutoTopUpView,
    Wish,
    configure,
    erase,
    intent_moved,
    retry_stuck,
    settings_of,
    top_up_if_low,
)
from billing.payments.buying import Purchase, buy, fulfil, session_ended
from billing.payments.reconciling import ask_about_open_ones
from billing.payments.reversals import follow_dispute, follow_refunds, refund_top_up

__all__ = [
    "AutoTopUpView",
    "Purchase",
    "Wish",
    "ask_about_open_ones",
    "buy",
    "configure",
    "erase",
    "follow_dispute",
    "follow_refunds",
    "fulfil",
    "intent_moved",
    "refund_top_up",
    "retry_stuck",
    "session_ended",
    "settings_of",
    "top_up_if_low",
]
