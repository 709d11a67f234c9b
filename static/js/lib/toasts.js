// Short news at the edge of the page, with at most one thing to do about it.

import { byId, cloneTemplate, fillSlot, findSlot, setVisible } from "./dom.js";

export function showToast(text, { act = null, label = "", seconds = 6 } = {}) {
  const made = cloneTemplate("toast");
  fillSlot(made, "text", text);
  const button = findSlot(made, "act");
  setVisible(button, Boolean(act));
  const gone = () => made.remove();
  const timer = setTimeout(gone, seconds * 1000);
  if (act) {
    button.textContent = label;
    button.onclick = () => {
      clearTimeout(timer);
      gone();
      act();
    };
  }
  byId("toasts").append(made);
  return gone;
}

/** For those who listen; a page without a place for it stays silent. */
export function announce(text) {
  const announcer = byId("announcer");
  if (!announcer) return;
  announcer.textContent = "";
  setTimeout(() => {
    announcer.textContent = text;
  }, 50);
}
