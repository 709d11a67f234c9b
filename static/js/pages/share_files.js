// Open files of a shared page in a dialog, with the same renderers as the owner's.

import { byId, delegateClicks, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { sharedFileSource } from "../lib/file_sources.js";
import { FileViewer } from "../lib/file_viewer.js";

const dialog = byId("shown");

function startViewer() {
  const { token, renderMax } = dialog.dataset;
  const close = () => dialog.close();
  const onGone = () => setVisible(findSlot(dialog, "download"), false);
  const viewer = new FileViewer(findSlot(dialog, "viewer"), {
    limit: Number(renderMax),
    onEscape: close,
    onGone,
  });
  delegateClicks(document.body, {
    "show-file": (link, event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // the user asked for a new tab
      event.preventDefault();
      const { file, name, type, size } = link.dataset;
      const source = sharedFileSource(token, { file_id: file, name, type, size: Number(size) });
      fillSlot(dialog, "name", name);
      Object.assign(findSlot(dialog, "download"), { href: source.download, download: name });
      setVisible(findSlot(dialog, "download"), true);
      dialog.showModal();
      viewer.show(source);
    },
    "close-shown": close,
  });
  dialog.addEventListener("close", () => viewer.clear());
}

if (dialog) startViewer();
