// Render audio and video with the browser's own controls.

import { createElement } from "../dom.js";
import { explainFailure } from "../file_sources.js";

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal, fail }) {
  const tag = source.type.startsWith("audio/") ? "audio" : "video";
  const player = createElement(tag, { controls: true, preload: "metadata", src: source.content(retry) });
  player.setAttribute("aria-label", source.name);
  const broken = new Error(`The browser cannot play this ${tag === "audio" ? "sound" : "film"}.`);
  try {
    await new Promise((resolve, reject) => {
      player.onloadedmetadata = resolve;
      player.onerror = () => reject(broken);
    });
  } catch (problem) {
    await explainFailure(source, { retry, signal });
    throw problem;
  }
  player.onerror = () => fail(broken);
  signal.addEventListener("abort", () => player.pause());
  stage.classList.add("centred");
  stage.append(player);
}
