// What could not be shown: why, the details to pass on, and what is left to do, unless it is gone.

import { copyBy } from "./copying.js";
import { element } from "./dom.js";
import { sizeText } from "./kinds.js";
import { _ } from "./words.js";

const WORDS = {
  0: _("It could not be loaded. Is the connection up?"),
  403: _("This file is in quarantine."),
  404: _("This file was deleted or is not available."),
  409: _("This file is being scanned. Please try again in a moment."),
  413: _("This file is too large to be shown."),
  429: _("Too many requests. Please try again in a moment."),
  503: _("The file store does not answer. Please try again in a moment."),
};

/** Deleted, or in quarantine: whatever is asked of it will be refused. */
export const isGone = (problem) => problem?.status === 404 || problem?.status === 403;

export function failureCard(source, problem, retry) {
  const details = [
    `type: ${source.type}`,
    `size: ${source.size} bytes (${sizeText(source.size)})`,
    `error: ${problem?.name ?? "Error"}: ${problem?.message ?? problem}`,
    problem?.stack ?? "",
  ].join("\n");
  const copy = element("button", { type: "button", className: "button", textContent: _("Copy details") });
  copy.addEventListener("click", () => copyBy(copy, details));
  const again = element("button", { type: "button", className: "button primary", textContent: _("Try again") });
  again.addEventListener("click", retry);
  const download = element("a", { className: "button", href: source.download, download: source.name, textContent: _("Download") });
  return element(
    "div",
    { className: "failure", role: "alert" },
    element("p", { className: "failure-words", textContent: WORDS[problem?.status] ?? _("This could not be shown.") }),
    element("div", { className: "failure-acts" }, ...(isGone(problem) ? [] : [again, download]), copy),
    element("details", {}, element("summary", { textContent: _("Details") }), element("pre", { textContent: details, tabIndex: 0 })),
  );
}
