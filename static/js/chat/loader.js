// Load the chat's scripts after its first paint, all in one go.

const PAINT_TIMEOUT_MS = 1000; // milliseconds; a window that nobody sees may never be painted

function loadScripts() {
  const behind = /** @type {HTMLTemplateElement} */ (document.getElementById("behind"));
  document.head.append(behind.content);
  behind.remove();
  clearTimeout(timer);
}

let timer = 0;
if (document.visibilityState === "visible") {
  timer = setTimeout(loadScripts, PAINT_TIMEOUT_MS);
  requestAnimationFrame(() => {
    clearTimeout(timer);
    timer = setTimeout(loadScripts); // behind the paint of this frame
  });
} else loadScripts();
