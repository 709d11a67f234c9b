// Source code, coloured where its language is known; also the source of what has a preview.

import { element } from "../dom.js";
import { highlight } from "../highlight.js";
import { languageOf } from "../kinds.js";
import { read } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  const text = await read(source, { retry, signal });
  const code = element("code", { textContent: text });
  const head = element("div", { className: "code-head" }, element("span", { textContent: languageOf(source) || "text" }));
  const body = element("div", { className: "code-body", tabIndex: 0 }, element("pre", {}, code));
  const block = element("div", { className: "code whole" }, head, body);
  stage.append(block);
  await highlight(block);
}
