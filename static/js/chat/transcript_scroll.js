// Follow the newest line only while the reader is there; fetch older pages without moving what they read.

const END_MARGIN_PX = 48; // pixels from the end that still count as the end
const LOAD_MARGIN_PX = 600; // pixels from the top at which the next older page is fetched

export class TranscriptScroll {
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

  /** A message somebody looked for, in the middle and marked for a moment. */
  scrollToRow(item) {
    if (!item) return this.scrollToEnd();
    this.isFollowing = false;
    item.scrollIntoView({ block: "center", behavior: "instant" });
    item.classList.add("sought");
    this.lastTop = this.box.scrollTop;
  }

  /** After a paint: stay at the end, or offer the way there when something new came. */
  updateAfterPaint(news) {
    if (this.isFollowing) this.scrollToEnd();
    else if (news && !this.#isAtEnd()) this.pill.hidden = false;
  }

  /** Whether somebody scrolled away from the newest line, and sees this instead. */
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

  /** Run `change`, which puts rows above, and keep what is on screen where it is. */
  keepPosition(change) {
    const { top } = this.box.getBoundingClientRect();
    const places = [...this.box.querySelectorAll("[data-row]")].map((row) => [
      row,
      row.getBoundingClientRect(),
    ]);
    const seen = places.filter(([, place]) => place.bottom > top); // a row that is folded away has no place
    change();
    const [anchor, before] = seen.find(([row]) => row.getClientRects().length) ?? [];
    if (anchor) this.box.scrollTop += anchor.getBoundingClientRect().top - before.top;
    this.lastTop = this.box.scrollTop;
  }
}
