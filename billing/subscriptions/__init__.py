"""Plans of accounts: the only writer of Subscription, PlanChange and an account's tier."""

from billing.subscriptions.changing import Wish, change
from billing.subscriptions.checkouts import Ways, checkout_ended
from billing.subscriptions.ending import erase
from billing.subscriptions.grace import lapse_overdue, renewal_failed
from billing.subscriptions.granting import check_drift, set_tier
from billing.subscriptions.portals import portal
from billing.subscriptions.previews import Price, preview
from billing.subscriptions.syncing import ENDED, customer_gone, reconcile, sync

__all__ = [
    "ENDED",
    "Price",
    "Ways",
    "Wish",
    "change",
    "check_drift",
    "checkout_ended",
    "customer_gone",
    "erase",
    "lapse_overdue",
    "portal",
    "preview",
    "reconcile",
    "renewal_failed",
    "set_tier",
    "sync",
]
