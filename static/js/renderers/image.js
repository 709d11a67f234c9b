// Pictures, SVG among them: as an image nothing inside it runs.

import { element } from "../dom.js";
import { explain } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  const image = element("img", { alt: source.name, src: source.content(retry) });
  try {
    await new Promise((resolve, reject) => {
      image.onload = resolve;
      image.onerror = () => reject(new Error("The browser cannot show this picture."));
    });
  } catch (problem) {
    await explain(source, { retry, signal });
    throw problem;
  }
  stage.classList.add("centred");
  stage.append(image);
}
