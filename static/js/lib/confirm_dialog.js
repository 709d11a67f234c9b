// Asks before something that cannot be taken back; the promise is whether to go on.

import { byId, fillSlot } from "./dom.js";

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
