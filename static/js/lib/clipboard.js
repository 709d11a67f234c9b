// Text goes to the clipboard, also over plain http, where browsers offer a page no clipboard of its own.

import { _ } from "./i18n.js";
import { announce } from "./toasts.js";

const FEEDBACK_MS = 1600;
// Button that says how it went → what it says otherwise, and the timer that brings it back.
const feedback = new WeakMap();

/** Copies, and has the button say whether it went well. */
export async function copyWithFeedback(button, text, { done = _("Copied"), failed = _("Not copied") } = {}) {
  const went = await copyText(text, button);
  announce(went ? done : failed);
  const icon = button.querySelector("use");
  if (icon)
    showFeedback(button, icon.href.baseVal, went ? "#i-check" : "#i-warn", (name) =>
      icon.setAttribute("href", name),
    );
  else
    showFeedback(button, button.textContent, went ? done : failed, (words) => (button.textContent = words));
}

export function copyCodeBlock(button) {
  return copyWithFeedback(button, button.closest(".code").querySelector("code").textContent);
}

/** Whether it went well; asked for by a click on the button, without which browsers let nothing be copied. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text, button.closest("dialog, body")); // no such thing here, or not allowed
  }
}

/** The old way: what is selected is copied. Only what is inside an open dialog can be, so `place` is that dialog. */
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
  focused?.focus({ preventScroll: true }); // last: a field has a selection of its own
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
