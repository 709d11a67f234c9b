// On a narrow screen the pages stand in one row that scrolls: the one that is open is brought into view, also after the screen was turned.

const strip = document.querySelector(".tabs");
const open = strip?.querySelector("[aria-current]");

/** By hand, as scrollIntoView would move the page too. */
function reveal() {
  const [outer, inner] = [strip.getBoundingClientRect(), open.getBoundingClientRect()];
  const left = strip.scrollLeft + inner.left - outer.left - (outer.width - inner.width) / 2;
  const top = strip.scrollTop + inner.top - outer.top - (outer.height - inner.height) / 2;
  strip.scrollTo({ left, top, behavior: "instant" });
}

if (open) {
  new ResizeObserver(reveal).observe(strip);
  addEventListener("resize", reveal); // there and back between two frames: no size changed, but the place is lost
}
