"""The diagnostics dashboard inside the admin site."""
