"""The login page of `make run` while the demo user does not exist yet."""

from __future__ import annotations

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from config.core import demo_login

pytestmark = pytest.mark.django_db


def show_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Sign in")


def test_the_login_page_waits_until_the_demo_user_exists(rf: RequestFactory) -> None:
    view = demo_login.hold_until_demo_login_exists(show_form)
    early = view(rf.get("/accounts/login/"))
    assert early.status_code == 503
    assert early["Refresh"] == early["Retry-After"] == str(demo_login.RETRY_SECONDS)
    demo_login.open_demo_login()
    assert view(rf.get("/accounts/login/")).status_code == 200
