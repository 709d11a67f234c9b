// Copy text to the clipboard, also over plain http, where browsers offer a page no clipboard API.

import { _ } from "./i18n.js";
import { announce } from "./toasts.js";

const FEEDBACK_MS = 1600;
// Button that shows the outcome → its usual text, and the timer that restores it.
const feedback = new WeakMap();

/**
 * Copy text and show on the button, and to screen readers, whether it was copied.
 * @param {HTMLElement} button
 * @param {string} text
 * @param {{ done?: string, failed?: string }} [labels]
 */
export async function copyWithFeedback(button, text, { done = _("Copied"), failed = _("Not copied") } = {}) {
  const went = await copyText(text, button);
  announce(went ? done : failed);
  const icon = /** @type {SVGUseElement | null} */ (/** @type {Element} */ (button.querySelector("use")));
  if (icon)
    showFeedback(button, icon.href.baseVal, went ? "#i-check" : "#i-warn", (name) =>
      icon.setAttribute("href", name),
    );
  else
    showFeedback(button, button.textContent, went ? done : failed, (words) => (button.textContent = words));
}

/** @param {HTMLElement} button of a code block */
export function copyCodeBlock(button) {
  return copyWithFeedback(button, button.closest(".code").querySelector("code").textContent);
}

/**
 * Copy text; true if it was copied. Browsers allow it only while they handle a click on the button.
 * @param {string} text
 * @param {HTMLElement} button
 * @returns {Promise<boolean>}
 */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text, button.closest("dialog, body")); // no such thing here, or not allowed
  }
}

/**
 * Copy by selecting the text in a field. Only what is inside an open dialog can be selected, so `place`
 * is that dialog.
 * @param {string} text
 * @param {HTMLElement} place
 */
function copyBySelection(text, place) {
  const focused = document.activeElement;
  const selection = getSelection();
  const ranges = Array.from({ length: selection.rangeCount }, (_none, index) => selection.getRangeAt(index));
  const area = document.createElement("textarea");
  Object.assign(area, { value: text, readOnly: true });
  Object.assign(area.style, { position: "fixed", top: "0", opacity: "0" });
  place.append(area);
  area.focus({ preventScroll: true });
  area.select();
  const went = document.execCommand("copy");
  area.remove();
  selection.removeAllRanges();
  for (const range of ranges) selection.addRange(range);
  focused?.focus({ preventScroll: true }); // last, because focusing a field changes the selection
  return went;
}

function showFeedback(button, usual, news, write) {
  const { usual: before = usual, timer } = feedback.get(button) ?? {};
  clearTimeout(timer);
  write(news);
  const back = () => {
    feedback.delete(button);
    write(before);
  };
  feedback.set(button, { usual: before, timer: setTimeout(back, FEEDBACK_MS) });
}
