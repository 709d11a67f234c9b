// A link out of an artifact: its address is shown before it is opened, in a tab that knows nothing of ours.

import { element } from "./dom.js";
import { _ } from "./words.js";

const LONGEST = 2048;

/** Only whole addresses of the web lead anywhere from a document that has none itself. */
export function addressOf(href) {
  if (typeof href !== "string" || href.length > LONGEST || !URL.canParse(href)) return null;
  const url = new URL(href);
  return ["http:", "https:"].includes(url.protocol) ? url.href : null;
}

export function askToLeave(address) {
  if (document.querySelector("dialog[open]")) return; // one at a time
  const stay = element("button", { className: "button", textContent: _("Stay here"), autofocus: true });
  const go = element("a", { className: "button primary", href: address, target: "_blank", rel: "noopener noreferrer nofollow", textContent: _("Open in a new tab") });
  const dialog = element(
    "dialog",
    { className: "confirm" },
    element(
      "form",
      { method: "dialog" },
      element("h2", { id: "leave-title", textContent: _("Open this address?") }),
      element("p", { className: "leave-address", textContent: address }),
      element("p", { className: "confirm-acts" }, stay, go),
    ),
  );
  dialog.setAttribute("aria-labelledby", "leave-title");
  go.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
