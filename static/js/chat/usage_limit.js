// The notice of a reached usage limit: what waits, until when, and what can be done about it.

import { callApi, csrfToken } from "../lib/api.js";
import { confirmAction } from "../lib/confirm_dialog.js";
import { byId, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { showToast } from "../lib/toasts.js";
import { formatTime } from "./labels.js";

export class UsageLimit {
  constructor() {
    this.box = byId("limit");
    this.button = findSlot(this.box, "reset");
    this.button.onclick = () => this.#reset();
    this.key = null;
    this.limit = null;
    this.credits = null;
    this.paintedLimit = null; // of the session's state
  }

  /** @param {SessionState} state */
  paintState({ limit }) {
    if (this.paintedLimit === limit) return;
    this.paintedLimit = limit;
    this.paint(limit);
  }

  /**
   * Show a limit as the event, the refusal or the notice describes it; null hides it.
   * @param {any} limit
   */
  paint(limit) {
    this.limit = limit;
    setVisible(this.box, Boolean(limit));
    if (!limit) return;
    fillSlot(this.box, "text", describeLimit(limit));
    setVisible(this.button, false);
    setVisible(findSlot(this.box, "plans"), !limit.can_reset);
    if (limit.can_reset) this.#offerReset(limit);
  }

  /**
   * Look for a limit after a reload, when messages are queued although no turn runs: no event tells of it
   * again.
   * @param {SessionState} state
   */
  async checkNotices(state) {
    if (state.turn || !state.queue.length) return;
    const { results } = await callApi("GET", "/billing/notices");
    const notice = results.find(
      (one) => one.kind === "limit_reached" && Date.parse(one.data.resets_at) > Date.now(),
    );
    if (notice && !state.turn && !this.limit) this.paint(notice.data);
  }

  async #offerReset(limit) {
    try {
      this.credits = await callApi("GET", "/billing/credits");
    } catch {
      return; // then there is the page of plans
    }
    if (this.limit !== limit) return;
    this.key = `reset-${Date.now()}-${Math.random().toString(36).slice(2)}`; // pressed twice, it is bought once
    this.button.textContent = _("Reset for {price}", { price: this.#formatMoney(limit.reset_cost_cents) });
    setVisible(this.button, true);
  }

  async #reset() {
    const { limit, credits } = this;
    const price = this.#formatMoney(limit.reset_cost_cents);
    const left = this.#formatMoney(credits.balance_cents - limit.reset_cost_cents);
    const text = _("This uses {price} in credits. You'll have {left} left.", { price, left });
    if (!(await confirmAction({ title: _("Reset your daily limit?"), text, yes: _("Reset") }))) return;
    this.button.disabled = true;
    try {
      const headers = { Accept: "application/json", "X-CSRFToken": csrfToken(), "Idempotency-Key": this.key };
      await callApi("POST", "/billing/usage/reset", undefined, { headers });
      this.paint(null);
      showToast(
        limit.queued ? _("Daily limit reset. Sending your queued messages.") : _("Daily limit reset."),
      );
    } catch (problem) {
      showToast(problem.message);
    } finally {
      this.button.disabled = false;
    }
  }

  #formatMoney(cents) {
    return new Intl.NumberFormat(undefined, { style: "currency", currency: this.credits.currency }).format(
      cents / 100,
    );
  }
}

function describeLimit({ window, resets_at, queued, reason }) {
  const time = formatTime(resets_at);
  if (reason === "held")
    return _("Your running chats have used up the rest of your limit. It resets at {time}.", { time });
  const reached =
    window === "daily" ? _("You've reached your daily limit.") : _("You've reached your weekly limit.");
  if (!queued) return `${reached} ${_("You can continue at {time}.", { time })}`;
  if (queued === 1) return `${reached} ${_("Your queued message will be sent at {time}.", { time })}`;
  return `${reached} ${_("Your {count} queued messages will be sent at {time}.", { count: queued, time })}`;
}
