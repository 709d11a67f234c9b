// Files of a shared page, shown where they are: the same renderers as the owner's, and nothing to change.

import { byId, delegate, fill, show, slot } from "./dom.js";
import { sharedFile } from "./sources.js";
import { Viewer } from "./viewer.js";

const dialog = byId("shown");

function start() {
  const { token, renderMax } = dialog.dataset;
  const close = () => dialog.close();
  const onGone = () => show(slot(dialog, "download"), false);
  const viewer = new Viewer(slot(dialog, "viewer"), { limit: Number(renderMax), onEscape: close, onGone });
  delegate(document.body, {
    "show-file": (link, event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // a tab of its own is theirs to ask for
      event.preventDefault();
      const { file, name, type, size } = link.dataset;
      const source = sharedFile(token, { file_id: file, name, type, size: Number(size) });
      fill(dialog, "name", name);
      Object.assign(slot(dialog, "download"), { href: source.download, download: name });
      show(slot(dialog, "download"), true);
      dialog.showModal();
      viewer.show(source);
    },
    "close-shown": close,
  });
  dialog.addEventListener("close", () => viewer.clear());
}

if (dialog) start();
