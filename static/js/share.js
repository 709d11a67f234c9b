// The share page with a script: colours by choice, times in the reader's zone, formulas, code to copy. It reads well without.

import { delegate } from "./dom.js";
import { typeset } from "./formulas.js";
import { startTheme } from "./theme.js";
import { _ } from "./words.js";

startTheme();
typeset(document);
for (const time of document.querySelectorAll("time[datetime]")) {
  const then = new Date(time.dateTime);
  if (!Number.isNaN(then.getTime())) time.textContent = then.toLocaleDateString(undefined, { dateStyle: "long" });
}
delegate(document.body, {
  "copy-code": async (button) => {
    await navigator.clipboard.writeText(button.closest(".code").querySelector("code").textContent);
    button.textContent = _("Copied");
    setTimeout(() => (button.textContent = _("Copy")), 1600);
  },
});
