"""Static files with hashed names, ES module imports included."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """`import "./turn.js"` inside a module is rewritten to the hashed name too."""

    support_js_module_import_aggregation = True
