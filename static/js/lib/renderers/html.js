// Render HTML that somebody else wrote, in a frame without an origin. It may send three messages, and none
// is trusted.

import { createElement } from "../dom.js";
import { explainFailure } from "../file_sources.js";
import { _ } from "../i18n.js";

const READY_TIMEOUT_MS = 2000; // for the message of a loaded frame; a refused one never sends it

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal, onEscape, showSource }) {
  await explainFailure(source, { retry, signal });
  const frame = createElement("iframe", { className: "framed", title: source.name });
  frame.setAttribute("sandbox", "allow-scripts"); // before the address: a frame keeps its first sandbox
  const ready = new Promise((resolve) => {
    const acts = {
      ready: () => resolve(true),
      link: ({ href }) => followLink(frame, href),
      escape: () => document.activeElement === frame && onEscape(),
    };
    addEventListener("message", (event) => handleMessage(event, frame, acts), { signal });
    frame.addEventListener("load", () => setTimeout(resolve, READY_TIMEOUT_MS, false), { signal });
  });
  frame.src = source.frame(retry);
  stage.append(frame);
  if (!(await ready)) showSource(); // browsers without Sec-Fetch-Dest get no document
}

function handleMessage(event, frame, acts) {
  if (event.source !== frame.contentWindow || event.origin !== "null") return;
  const said = event.data?.artifact;
  if (typeof said !== "object" || said === null || !Object.hasOwn(acts, said.kind)) return;
  acts[said.kind](said);
}

/** True while a person uses the frame: a document must not open links without a click. */
const isInUse = (frame) => document.activeElement === frame && navigator.userActivation?.isActive !== false;

function followLink(frame, href) {
  const address = parseWebAddress(href);
  if (address && isInUse(frame)) confirmExternalLink(address);
}

const MAX_ADDRESS_LENGTH = 2048;

/** Accept only absolute web addresses: the document has no address that others could be relative to. */
function parseWebAddress(href) {
  if (typeof href !== "string" || href.length > MAX_ADDRESS_LENGTH || !URL.canParse(href)) return null;
  const url = new URL(href);
  return ["http:", "https:"].includes(url.protocol) ? url.href : null;
}

function confirmExternalLink(address) {
  if (document.querySelector("dialog[open]")) return; // one at a time
  const stay = createElement("button", { className: "button", textContent: _("Stay here"), autofocus: true });
  const go = createElement("a", {
    className: "button primary",
    href: address,
    target: "_blank",
    rel: "noopener noreferrer nofollow",
    textContent: _("Open in a new tab"),
  });
  const dialog = createElement(
    "dialog",
    { className: "confirm" },
    createElement(
      "form",
      { method: "dialog" },
      createElement("h2", { id: "leave-title", textContent: _("Open this address?") }),
      createElement("p", { className: "leave-address", textContent: address }),
      createElement("p", { className: "confirm-acts" }, stay, go),
    ),
  );
  dialog.setAttribute("aria-labelledby", "leave-title");
  go.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
