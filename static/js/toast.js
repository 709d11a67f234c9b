// Short news at the edge of the page, with at most one thing to do about it.

import { byId, clone, fill, show, slot } from "./dom.js";

export function toast(text, { act = null, label = "", seconds = 6 } = {}) {
  const made = clone("toast");
  fill(made, "text", text);
  const button = slot(made, "act");
  show(button, Boolean(act));
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

export function announce(text) {
  byId("announcer").textContent = "";
  setTimeout(() => {
    byId("announcer").textContent = text;
  }, 50);
}
