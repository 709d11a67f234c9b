// What nobody shows, and what is too large for our script: a card to download it.

import { element } from "../dom.js";
import { isScripted, kindOf, labelOf, sizeText } from "../kinds.js";
import { _ } from "../words.js";

export function render(stage, source) {
  const words = isScripted(kindOf(source)) ? _("Too large to be shown here.") : _("There is no preview of this kind of file.");
  stage.classList.add("centred");
  stage.append(
    element(
      "div",
      { className: "download-card" },
      element("strong", { textContent: source.name }),
      element("p", { textContent: `${labelOf(source)} · ${sizeText(source.size)}` }),
      element("p", { textContent: words }),
      element("a", { className: "button primary", href: source.download, download: source.name, textContent: _("Download") }),
    ),
  );
}
