"""The OpenAPI document and its viewer; both are public, and the viewer's assets are our own."""

from __future__ import annotations

from csp.decorators import csp_update
from django.utils.decorators import method_decorator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.renderers import TemplateHTMLRenderer

from copilot.api.doors import Plain

# The viewer writes style attributes as it draws; scripts stay our own.
STYLES = csp_update({"style-src": "'unsafe-inline'"})


class DocumentView(Plain, SpectacularAPIView):
    authentication_classes = []
    permission_classes = []
    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer, OpenApiYamlRenderer]
    # Our shapes come with their own names for everything; tags are the first word after the version.
    custom_settings = {"SCHEMA_PATH_PREFIX": "/api/v1"}


@method_decorator(STYLES, name="dispatch")
class ViewerView(Plain, SpectacularSwaggerSplitView):
    authentication_classes = []
    permission_classes = []
    renderer_classes = [TemplateHTMLRenderer]
    url_name = "api-schema"
