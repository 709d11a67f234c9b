// A usage limit that is reached: what waits, until when, and what can be done about it (B7.2).

import { call, token } from "./api.js";
import { confirmed } from "./confirm.js";
import { byId, fill, show, slot } from "./dom.js";
import { clock } from "./rows.js";
import { toast } from "./toast.js";
import { _ } from "./words.js";

export class Limit {
  constructor() {
    this.box = byId("limit");
    this.button = slot(this.box, "reset");
    this.button.onclick = () => this.#reset();
    this.key = null;
  }

  /** `limit` is the event, the refusal or the notice: they say the same. */
  paint(limit) {
    this.limit = limit;
    show(this.box, Boolean(limit));
    if (!limit) return;
    fill(this.box, "text", words(limit));
    show(this.button, false);
    show(slot(this.box, "plans"), !limit.can_reset);
    if (limit.can_reset) this.#offer(limit);
  }

  /** After a reload nothing tells it again: what waits although nothing runs may wait for a limit. */
  async look(state) {
    if (state.turn || !state.queue.length) return;
    const { results } = await call("GET", "/billing/notices");
    const notice = results.find((one) => one.kind === "limit_reached" && Date.parse(one.data.resets_at) > Date.now());
    if (notice && !state.turn && !this.limit) this.paint(notice.data);
  }

  async #offer(limit) {
    try {
      this.credits = await call("GET", "/billing/credits");
    } catch {
      return; // then there is the page of plans
    }
    if (this.limit !== limit) return;
    this.key = `reset-${Date.now()}-${Math.random().toString(36).slice(2)}`; // pressed twice, it is bought once
    this.button.textContent = _("Reset for {price}", { price: this.#money(limit.reset_cost_cents) });
    show(this.button, true);
  }

  async #reset() {
    const { limit, credits } = this;
    const price = this.#money(limit.reset_cost_cents);
    const left = this.#money(credits.balance_cents - limit.reset_cost_cents);
    const text = _("It costs {price} of your credits; {left} will be left.", { price, left });
    if (!(await confirmed({ title: _("Reset your daily limit?"), text, yes: _("Reset") }))) return;
    this.button.disabled = true;
    try {
      const headers = { Accept: "application/json", "X-CSRFToken": token(), "Idempotency-Key": this.key };
      await call("POST", "/billing/usage/reset", undefined, { headers });
      this.paint(null);
      toast(limit.queued ? _("Your daily limit was reset. What waited goes out now.") : _("Your daily limit was reset."));
    } catch (problem) {
      toast(problem.message);
    } finally {
      this.button.disabled = false;
    }
  }

  #money(cents) {
    return new Intl.NumberFormat(undefined, { style: "currency", currency: this.credits.currency }).format(cents / 100);
  }
}

function words({ window, resets_at, queued, reason }) {
  const time = clock(resets_at);
  if (reason === "held") return _("Your running chats have taken up the rest of your limit. It starts anew at {time}.", { time });
  const reached = window === "daily" ? _("You have reached your daily limit.") : _("You have reached your weekly limit.");
  if (!queued) return `${reached} ${_("You can go on from {time}.", { time })}`;
  if (queued === 1) return `${reached} ${_("One message waits and goes out by itself at {time}.", { time })}`;
  return `${reached} ${_("{count} messages wait and go out by themselves at {time}.", { count: queued, time })}`;
}
