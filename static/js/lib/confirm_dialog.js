// Ask for a confirmation before something that cannot be undone.

import { byId, fillSlot } from "./dom.js";

/**
 * Show the page's confirmation dialog; the promise is true if the person agrees.
 * @param {{ title: string, text: string, yes: string }} texts
 * @returns {Promise<boolean>}
 */
export function confirmAction({ title, text, yes }) {
  const dialog = byId("confirm");
  fillSlot(dialog, "title", title);
  fillSlot(dialog, "text", text);
  fillSlot(dialog, "yes", yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
