// The chat is painted first; what makes it move is fetched behind that, in one go (W4.3).

const UNPAINTED_FOR = 1000; // milliseconds; a window that nobody sees may never be painted

function begin() {
  const behind = document.getElementById("behind");
  document.head.append(behind.content);
  behind.remove();
  clearTimeout(waiting);
}

let waiting = 0;
if (document.visibilityState === "visible") {
  waiting = setTimeout(begin, UNPAINTED_FOR);
  requestAnimationFrame(() => {
    clearTimeout(waiting);
    waiting = setTimeout(begin); // behind the paint of this frame
  });
} else begin();
