// Render plain text unchanged.

import { createElement } from "../dom.js";
import { readText } from "../file_sources.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal }) {
  const text = await readText(source, { retry, signal });
  stage.append(createElement("pre", { className: "plain", textContent: text, tabIndex: 0 }));
}
