// Render PDF in the browser's viewer, which works in no sandbox: from our file route, which has checked its
// bytes.

import { createElement } from "../dom.js";
import { explainFailure } from "../file_sources.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal }) {
  await explainFailure(source, { retry, signal });
  stage.append(
    createElement("iframe", { className: "framed", title: source.name, src: source.content(retry) }),
  );
}
