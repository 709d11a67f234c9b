// PDF in the browser's own viewer, which works in no sandbox: from our file route, which has looked at its bytes (S7).

import { element } from "../dom.js";
import { explain } from "../sources.js";

export async function render(stage, source, { retry, signal }) {
  await explain(source, { retry, signal });
  stage.append(element("iframe", { className: "framed", title: source.name, src: source.content(retry) }));
}
