// The share page: theme, local times, formulas, highlighted code and copy buttons. It can be read without a
// script.

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
