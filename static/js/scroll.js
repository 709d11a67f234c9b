// Follow the newest line only while the reader is there; fetch older pages without moving what they read (W2.2).

const NEAR = 48; // pixels from the end that still count as the end
const OLDER_AT = 600; // pixels from the top at which the next older page is fetched

export class Scroll {
  constructor(box, pill, { loadOlder }) {
    this.box = box;
    this.pill = pill;
    this.loadOlder = loadOlder;
    this.following = true;
    this.lastTop = 0;
    box.addEventListener("scroll", () => this.#moved(), { passive: true });
    pill.addEventListener("click", () => this.toEnd(true));
    new ResizeObserver(() => this.following && this.toEnd()).observe(box);
  }

  toEnd(smooth = false) {
    this.following = true;
    this.pill.hidden = true;
    const calm = smooth && matchMedia("(prefers-reduced-motion: reduce)").matches;
    const top = this.box.querySelector(".empty:not([hidden])") ? 0 : this.box.scrollHeight; // what a new chat offers is read from its top
    this.box.scrollTo({ top, behavior: smooth && !calm ? "smooth" : "instant" });
    this.lastTop = this.box.scrollTop;
  }

  /** A message somebody looked for, in the middle and marked for a moment. */
  toRow(item) {
    if (!item) return this.toEnd();
    this.following = false;
    item.scrollIntoView({ block: "center", behavior: "instant" });
    item.classList.add("sought");
    this.lastTop = this.box.scrollTop;
  }

  /** After a paint: stay at the end, or offer the way there when something new came. */
  settle(news) {
    if (this.following) this.toEnd();
    else if (news && !this.#atEnd()) this.pill.hidden = false;
  }

  /** Whether somebody scrolled away from the newest line, and sees this instead. */
  isLookedAt(item) {
    const [own, box] = [item.getBoundingClientRect(), this.box.getBoundingClientRect()];
    return !this.following && own.bottom > box.top && own.top < box.bottom;
  }

  #moved() {
    const { scrollTop } = this.box;
    // Only a person scrolls up; growth of the content never does.
    if (this.#atEnd()) {
      this.following = true;
      this.pill.hidden = true;
    } else if (scrollTop < this.lastTop - 1) this.following = false;
    this.lastTop = scrollTop;
    if (scrollTop < OLDER_AT) this.loadOlder();
  }

  #atEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight <= NEAR;
  }

  /** Run `change`, which puts rows above, and keep what is on screen where it is. */
  keepingPlace(change) {
    const { top } = this.box.getBoundingClientRect();
    const places = [...this.box.querySelectorAll("[data-row]")].map((row) => [row, row.getBoundingClientRect()]);
    const seen = places.filter(([, place]) => place.bottom > top); // a row that is folded away has no place
    change();
    const [anchor, before] = seen.find(([row]) => row.getClientRects().length) ?? [];
    if (anchor) this.box.scrollTop += anchor.getBoundingClientRect().top - before.top;
    this.lastTop = this.box.scrollTop;
  }
}
