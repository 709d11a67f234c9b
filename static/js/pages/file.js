// The page of one file: the panel's viewer, as large as the window.

import "./base.js";
import { byId, setVisible } from "../lib/dom.js";
import { ownFileSource } from "../lib/file_sources.js";
import { fileKind, hasSourceView } from "../lib/file_types.js";
import { FileViewer } from "../lib/file_viewer.js";

const box = byId("main");
const { file, name, type, size, renderMax } = box.dataset;
const source = ownFileSource({ file_id: file, name, type, size: Number(size) });
const button = byId("source");
const viewer = new FileViewer(box, {
  limit: Number(renderMax),
  onGone: () => {
    setVisible(button, false);
    setVisible(byId("download"), false);
  },
});
setVisible(button, hasSourceView(fileKind(source)) && source.size <= Number(renderMax));
button.addEventListener("click", () => {
  const wanted = button.getAttribute("aria-pressed") === "false";
  button.setAttribute("aria-pressed", String(wanted));
  viewer.show(source, wanted ? "source" : "preview");
});
viewer.show(source);
