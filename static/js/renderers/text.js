// Plain text, as it is.

import { element } from "../dom.js";
import { read } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  const text = await read(source, { retry, signal });
  stage.append(element("pre", { className: "plain", textContent: text, tabIndex: 0 }));
}
