// Markdown as the conversation shows it: sanitised, and loading nothing.

import { delegate, element } from "../dom.js";
import { GrowingMarkdown } from "../markdown.js";
import { read } from "../sources.js";
import { _ } from "../words.js";

export async function render(stage, source, { retry, signal }) {
  const text = await read(source, { retry, signal });
  const prose = element("div", { className: "prose sheet-of-prose" });
  stage.append(prose);
  new GrowingMarkdown(prose).update(text, true);
  if (!source.page) for (const link of prose.querySelectorAll(".file-link")) link.removeAttribute("href"); // strangers have no such page
  delegate(prose, { "copy-code": copyCode });
}

async function copyCode(button) {
  await navigator.clipboard.writeText(button.closest(".code").querySelector("code").textContent);
  button.textContent = _("Copied");
  setTimeout(() => (button.textContent = _("Copy")), 1600);
}
