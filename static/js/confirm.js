// Asks before something that cannot be taken back; the promise is whether to go on.

import { byId, fill } from "./dom.js";

export function confirmed({ title, text, yes }) {
  const dialog = byId("confirm");
  fill(dialog, "title", title);
  fill(dialog, "text", text);
  fill(dialog, "yes", yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
