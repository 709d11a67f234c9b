// Short messages at the edge of the page, with at most one action, and announcements for screen readers.

import { byId, cloneTemplate, fillSlot, findSlot, setVisible } from "./dom.js";

/**
 * Show a message for some seconds; the result removes it.
 * @param {string} text
 * @param {{ act?: (() => unknown) | null, label?: string, seconds?: number }} [options]
 * @returns {() => void}
 */
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

/**
 * Tell screen readers; nothing happens on pages without a place for it.
 * @param {string} text
 */
export function announce(text) {
  const announcer = byId("announcer");
  if (!announcer) return;
  announcer.textContent = "";
  setTimeout(() => {
    announcer.textContent = text;
  }, 50);
}
