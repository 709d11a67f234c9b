"""Serve the OpenAPI document and its viewer; both are public, and the viewer's assets are our own."""

# Building the document takes a second of CPU, so each process builds it once and answers from memory.

from __future__ import annotations

import hashlib
import threading
from typing import ClassVar, NamedTuple

from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from django.utils.decorators import method_decorator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer
from drf_spectacular.settings import patched_settings, spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.renderers import BaseRenderer, TemplateHTMLRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import rate_limits
from config.core.errors import TooManyRequests
from copilot.api.base import BaseApiView
from copilot.sharing import access

READS_PER_MINUTE = 60

# The viewer sets style attributes while it renders; scripts are still limited to our own.
ALLOW_INLINE_STYLES = csp_update({"style-src": "'unsafe-inline'"})


class AddressThrottle(BaseThrottle):
    """Count anonymous requests by address. Without Redis, nobody is refused."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        address = str(request.META.get("REMOTE_ADDR", ""))
        retry_after_seconds = rate_limits.count_request(
            "api-document", access.hash_visitor_address(address), limit=READS_PER_MINUTE, seconds=60
        )
        if retry_after_seconds is not None:
            raise TooManyRequests(
                "Too many requests. Please slow down.", retry_after_seconds=retry_after_seconds
            )
        return True


class RenderedSchema(NamedTuple):
    content: bytes
    etag: str


class SchemaView(BaseApiView, SpectacularAPIView):
    authentication_classes = []
    permission_classes = []
    throttle_classes = [AddressThrottle]
    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer, OpenApiYamlRenderer]
    # Tags are the first path segment after the version.
    custom_settings = {"SCHEMA_PATH_PREFIX": "/api/v1"}
    _rendered_by_media_type: ClassVar[dict[str, RenderedSchema]] = {}
    _render_lock: ClassVar[threading.Lock] = threading.Lock()

    @extend_schema(exclude=True)  # the document does not describe itself
    def get(self, request: Request, *args: object, **kwargs: object) -> HttpResponseBase:
        """Give everybody the same answer; no request parameter changes it."""
        renderer = request.accepted_renderer
        document = self._get_rendered_schema(renderer)
        response = HttpResponse(document.content, content_type=str(renderer.media_type))
        response["Content-Disposition"] = f'inline; filename="pilothouse.{renderer.format}"'
        response["Cache-Control"] = "public, max-age=300"
        response["Vary"] = "Accept"
        response["ETag"] = document.etag
        django_request: HttpRequest = request._request
        return get_conditional_response(django_request, etag=document.etag, response=response) or response

    def _get_rendered_schema(self, renderer: BaseRenderer) -> RenderedSchema:
        with self._render_lock:
            media_type = str(renderer.media_type)
            if media_type not in self._rendered_by_media_type:
                with patched_settings(self.custom_settings):
                    generator = spectacular_settings.DEFAULT_GENERATOR_CLASS()
                    rendered = renderer.render(
                        generator.get_schema(request=None, public=True), media_type, {}
                    )
                content = rendered.encode() if isinstance(rendered, str) else rendered
                self._rendered_by_media_type[media_type] = RenderedSchema(
                    content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                )
            return self._rendered_by_media_type[media_type]


@method_decorator(ALLOW_INLINE_STYLES, name="dispatch")
class SchemaViewerView(BaseApiView, SpectacularSwaggerSplitView):
    authentication_classes = []
    permission_classes = []
    throttle_classes = [AddressThrottle]
    renderer_classes = [TemplateHTMLRenderer]
    url_name = "api-schema"
