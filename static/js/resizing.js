// A handle between two columns: by pointer, whatever lies under it, and by keys. The width is remembered.

const KEPT = "panel-width";
const STEP = 24; // pixels per key press; with Shift four of them
const LEAST = 320;
const BESIDE = 360; // what stays for the conversation

export class Resizing {
  /** `apply(pixels)` sets the width; `taken()` is what stands left of both columns. */
  constructor(handle, { apply, taken }) {
    Object.assign(this, { handle, apply, taken });
    handle.addEventListener("pointerdown", (event) => this.#grasp(event));
    handle.addEventListener("pointermove", (event) => handle.hasPointerCapture(event.pointerId) && this.#set(innerWidth - event.clientX));
    handle.addEventListener("lostpointercapture", () => this.#letGo());
    handle.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("resize", () => this.restore());
  }

  /** As wide as it was left, within what the window has room for. */
  restore() {
    const kept = Number(localStorage.getItem(KEPT));
    this.#set(kept || Math.round((innerWidth - this.taken()) * 0.5));
  }

  get #most() {
    return Math.max(LEAST, innerWidth - this.taken() - BESIDE);
  }

  #set(pixels) {
    this.width = Math.round(Math.min(Math.max(pixels, LEAST), this.#most));
    this.apply(this.width);
    const values = { min: LEAST, max: this.#most, now: this.width };
    for (const [name, value] of Object.entries(values)) this.handle.setAttribute(`aria-value${name}`, value);
  }

  #grasp(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.handle.focus();
    this.handle.setPointerCapture(event.pointerId); // frames under the pointer get nothing, and its release is ours wherever it happens
    document.body.dataset.resizing = "";
  }

  #letGo() {
    delete document.body.dataset.resizing;
    localStorage.setItem(KEPT, this.width);
  }

  #key(event) {
    const step = event.shiftKey ? 4 * STEP : STEP;
    const wanted = { ArrowLeft: this.width + step, ArrowRight: this.width - step, Home: this.#most, End: LEAST }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    this.#set(wanted);
    localStorage.setItem(KEPT, this.width);
  }
}
