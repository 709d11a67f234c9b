// The page of one file: the same viewer as the panel's, as large as the window.

import "./page.js";
import { byId, show } from "./dom.js";
import { hasSource, kindOf } from "./kinds.js";
import { ownFile } from "./sources.js";
import { Viewer } from "./viewer.js";

const box = byId("main");
const { file, name, type, size, renderMax } = box.dataset;
const source = ownFile({ file_id: file, name, type, size: Number(size) });
const button = byId("source");
const viewer = new Viewer(box, { limit: Number(renderMax), onGone: () => [button, byId("download")].forEach((offer) => show(offer, false)) });
show(button, hasSource(kindOf(source)) && source.size <= Number(renderMax));
button.addEventListener("click", () => {
  const wanted = button.getAttribute("aria-pressed") === "false";
  button.setAttribute("aria-pressed", String(wanted));
  viewer.show(source, wanted ? "source" : "preview");
});
viewer.show(source);
