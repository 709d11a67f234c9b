"""Run an OpenID Connect provider on this machine and sign in through it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from django.test import Client


@contextmanager
def identity_provider(person: dict[str, object]) -> Iterator[str]:
    """OpenID Connect as far as a sign-in needs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("/.well-known/openid-configuration"):
                self._say(
                    {
                        "issuer": url,
                        "authorization_endpoint": f"{url}/authorize",
                        "token_endpoint": f"{url}/token",
                        "userinfo_endpoint": f"{url}/userinfo",
                        "jwks_uri": f"{url}/keys",
                    }
                )
            else:
                assert self.headers["authorization"] == "Bearer opaque"
                self._say(person)

        def do_POST(self) -> None:
            sent = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            assert sent["code"] == ["once"]
            claims = {"iss": url, "aud": "pilothouse", "iat": time.time(), "exp": time.time() + 60, **person}
            self._say(
                {
                    "access_token": "opaque",
                    "token_type": "Bearer",
                    "id_token": jwt.encode(claims, "k" * 32, algorithm="HS256"),
                }
            )

        def _say(self, body: dict[str, object]) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()


def finish_social_login(client: Client) -> tuple[Any, Any]:
    """Return the redirect to the provider, and the answer to the way back."""
    leaving: Any = client.post("/accounts/oidc/sso/login/?process=login")
    state = parse_qs(urlsplit(leaving.url).query)["state"][0]
    return leaving, client.get("/accounts/oidc/sso/login/callback/", {"code": "once", "state": state})
