// Load the chat's scripts after its first paint, all in one go.

const PAINT_TIMEOUT_MS = 1000; // a window that nobody sees may never be painted

function loadScripts() {
  const deferred = /** @type {HTMLTemplateElement} */ (document.getElementById("deferred"));
  document.head.append(deferred.content);
  deferred.remove();
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
