// Render images, SVG among them: as an image nothing inside of it runs.

import { createElement } from "../dom.js";
import { explainFailure } from "../file_sources.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal }) {
  const image = createElement("img", { alt: source.name, src: source.content(retry) });
  try {
    await new Promise((resolve, reject) => {
      image.onload = resolve;
      image.onerror = () => reject(new Error("The browser cannot show this picture."));
    });
  } catch (problem) {
    await explainFailure(source, { retry, signal });
    throw problem;
  }
  stage.classList.add("centred");
  stage.append(image);
}
