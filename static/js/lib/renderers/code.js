// Render source code, highlighted where its language is known; also the source view of what has a preview.

import { createElement } from "../dom.js";
import { readText } from "../file_sources.js";
import { fileLanguage } from "../file_types.js";
import { highlightCode } from "../highlight.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal }) {
  const text = await readText(source, { retry, signal });
  const code = createElement("code", { textContent: text });
  const head = createElement(
    "div",
    { className: "code-head" },
    createElement("span", { textContent: fileLanguage(source) || "text" }),
  );
  const body = createElement("div", { className: "code-body", tabIndex: 0 }, createElement("pre", {}, code));
  const block = createElement("div", { className: "code whole" }, head, body);
  stage.append(block);
  await highlightCode(block);
}
