// Markdown as the conversation shows it: sanitised, and loading nothing.

import { element } from "../dom.js";
import { GrowingMarkdown } from "../markdown.js";
import { read } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  const text = await read(source, { retry, signal });
  const prose = element("div", { className: "prose sheet-of-prose" });
  stage.append(prose);
  new GrowingMarkdown(prose).update(text, true);
}
