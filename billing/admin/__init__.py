"""Register billing's admin pages, one module per group of models."""

from billing.admin import accounts, ledger, payments, policies  # noqa: F401
