// Render Markdown as the conversation shows it: sanitised, and loading nothing.

import { copyCodeBlock } from "../clipboard.js";
import { createElement, delegateClicks } from "../dom.js";
import { readText } from "../file_sources.js";
import { StreamingMarkdown } from "../markdown.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal }) {
  const text = await readText(source, { retry, signal });
  const prose = createElement("div", { className: "prose sheet-of-prose" });
  stage.append(prose);
  new StreamingMarkdown(prose).update(text, true);
  if (!source.page) removeFileLinks(prose);
  delegateClicks(prose, { "copy-code": copyCodeBlock });
}

/** Remove links to the owner's files: readers of a shared page may not open them. */
function removeFileLinks(prose) {
  for (const link of prose.querySelectorAll(".file-link")) link.removeAttribute("href");
  for (const picture of prose.querySelectorAll("img")) picture.replaceWith(picture.alt);
}
