// Render a card to download what has no preview or is too large for our script.

import { createElement } from "../dom.js";
import { fileKind, fileTypeLabel, formatSize, isRenderedByScript } from "../file_types.js";
import { _ } from "../i18n.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 */
export function render(stage, source) {
  const words = isRenderedByScript(fileKind(source))
    ? _("Too large to preview.")
    : _("No preview for this file type.");
  stage.classList.add("centred");
  stage.append(
    createElement(
      "div",
      { className: "download-card" },
      createElement("strong", { textContent: source.name }),
      createElement("p", { textContent: `${fileTypeLabel(source)} · ${formatSize(source.size)}` }),
      createElement("p", { textContent: words }),
      createElement("a", {
        className: "button primary",
        href: source.download,
        download: source.name,
        textContent: _("Download"),
      }),
    ),
  );
}
