"""Accounts: who may sign up, invitations, devices and recent logins."""
