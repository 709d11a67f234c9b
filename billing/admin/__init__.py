"""Staff pages of billing, one module for each group of models."""

from billing.admin import accounts, ledger, payments, policies, prices  # noqa: F401
