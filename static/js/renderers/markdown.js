// Markdown as the conversation shows it: sanitised, and loading nothing.

import { copyCode } from "../copying.js";
import { delegate, element } from "../dom.js";
import { GrowingMarkdown } from "../markdown.js";
import { read } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  const text = await read(source, { retry, signal });
  const prose = element("div", { className: "prose sheet-of-prose" });
  stage.append(prose);
  new GrowingMarkdown(prose).update(text, true);
  if (!source.page) withoutFiles(prose);
  delegate(prose, { "copy-code": copyCode });
}

/** Strangers have neither the page nor the bytes of what a file of the owner names. */
function withoutFiles(prose) {
  for (const link of prose.querySelectorAll(".file-link")) link.removeAttribute("href");
  for (const picture of prose.querySelectorAll("img")) picture.replaceWith(picture.alt);
}
