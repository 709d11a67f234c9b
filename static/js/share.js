// The share page with a script: colours by choice, times in the reader's zone, formulas, code to copy. It reads well without.

import { copyCode } from "./copying.js";
import { delegate } from "./dom.js";
import { typeset } from "./formulas.js";
import { highlight } from "./highlight.js";
import { startTheme } from "./theme.js";

startTheme();
typeset(document);
highlight(document.body);
for (const time of document.querySelectorAll("time[datetime]")) {
  const then = new Date(time.dateTime);
  if (!Number.isNaN(then.getTime())) time.textContent = then.toLocaleDateString(undefined, { dateStyle: "long" });
}
delegate(document.body, { "copy-code": copyCode });
