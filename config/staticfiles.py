"""Static files with hashed names, the imports inside our own ES modules included."""

from __future__ import annotations

from django.contrib.staticfiles.storage import HashedFilesMixin
from whitenoise.storage import CompressedManifestStaticFilesStorage

_, _IMPORTS = HashedFilesMixin._js_module_import_aggregation_patterns  # type: ignore[attr-defined]


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """`import "./turn.js"` is rewritten to the hashed name; packages' files, whose comments look like imports, are not."""

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = ("js/*.js", _IMPORTS)
