// The share page with a script: colours by choice, times in the reader's zone, formulas, code to copy. It
// reads well without.

import { copyCodeBlock } from "../lib/clipboard.js";
import { delegateClicks } from "../lib/dom.js";
import { typesetFormulas } from "../lib/formulas.js";
import { highlightCode } from "../lib/highlight.js";
import { startTheme } from "../lib/theme.js";

startTheme();
typesetFormulas(document);
highlightCode(document.body);
for (const time of document.querySelectorAll("time[datetime]")) {
  const then = new Date(time.dateTime);
  if (!Number.isNaN(then.getTime()))
    time.textContent = then.toLocaleDateString(undefined, { dateStyle: "long" });
}
delegateClicks(document.body, { "copy-code": copyCodeBlock });
