// Follow the newest line only while the reader is there, and load older pages without moving what they
// read.

const END_MARGIN_PX = 48; // pixels from the end that still count as the end
const LOAD_MARGIN_PX = 600; // pixels from the top at which the next older page is fetched

export class TranscriptScroll {
  /**
   * @param {PageElement} box
   * @param {PageElement} pill the button to the newest line
   * @param {{ loadOlder: () => void }} options
   */
  constructor(box, pill, { loadOlder }) {
    this.box = box;
    this.pill = pill;
    this.loadOlder = loadOlder;
    this.isFollowing = true;
    this.lastTop = 0;
    box.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    pill.addEventListener("click", () => this.scrollToEnd(true));
    new ResizeObserver(() => this.isFollowing && this.scrollToEnd()).observe(box);
  }

  scrollToEnd(smooth = false) {
    this.isFollowing = true;
    this.pill.hidden = true;
    const calm = smooth && matchMedia("(prefers-reduced-motion: reduce)").matches;
    // What a new chat offers is read from its top.
    const top = this.box.querySelector(".empty:not([hidden])") ? 0 : this.box.scrollHeight;
    this.box.scrollTo({ top, behavior: smooth && !calm ? "smooth" : "instant" });
    this.lastTop = this.box.scrollTop;
  }

  /** Scroll to a message that somebody looked for, and mark it for a moment. */
  scrollToRow(item) {
    if (!item) return this.scrollToEnd();
    this.isFollowing = false;
    item.scrollIntoView({ block: "center", behavior: "instant" });
    item.classList.add("sought");
    this.lastTop = this.box.scrollTop;
  }

  /** Stay at the end, or offer the button to it if something new came. */
  updateAfterPaint(news) {
    if (this.isFollowing) this.scrollToEnd();
    else if (news && !this.#isAtEnd()) this.pill.hidden = false;
  }

  /** True if somebody scrolled away from the newest line and sees this. */
  isInView(item) {
    const [own, box] = [item.getBoundingClientRect(), this.box.getBoundingClientRect()];
    return !this.isFollowing && own.bottom > box.top && own.top < box.bottom;
  }

  #onScroll() {
    const { scrollTop } = this.box;
    // Only a person scrolls up; growth of the content never does.
    if (this.#isAtEnd()) {
      this.isFollowing = true;
      this.pill.hidden = true;
    } else if (scrollTop < this.lastTop - 1) this.isFollowing = false;
    this.lastTop = scrollTop;
    if (scrollTop < LOAD_MARGIN_PX) this.loadOlder();
  }

  #isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight <= END_MARGIN_PX;
  }

  /**
   * Run `change`, which may add rows above, and keep what is on screen in its place.
   * @param {() => void} change
   */
  keepPosition(change) {
    const { top } = this.box.getBoundingClientRect();
    const rows = [...this.box.querySelectorAll("[data-row]")];
    const places = rows.map((row) => ({ row, place: row.getBoundingClientRect() }));
    const visible = places.filter(({ place }) => place.bottom > top); // a collapsed row has no place
    change();
    const anchor = visible.find(({ row }) => row.getClientRects().length);
    if (anchor) this.box.scrollTop += anchor.row.getBoundingClientRect().top - anchor.place.top;
    this.lastTop = this.box.scrollTop;
  }
}
