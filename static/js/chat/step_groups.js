// Collapse the steps before an answer into one line once the turn has ended: "Show 7 steps". The server
// does the same.

import { cloneTemplate, fillSlot } from "../lib/dom.js";

const MIN_STEPS = 3; // fewer lines are calmer than a line that hides them
const STEP_KINDS = new Set(["reasoning", "tool_call", "tool_result", "assistant"]);

export class StepGroups {
  /**
   * @param {PageElement} list
   * @param {SessionState} state
   * @param {{ elements: Map<string, PageElement>, calls: Map<string, string> }} transcript
   * @param {{ isInView: (item: Element) => boolean }} options
   */
  constructor(list, state, transcript, { isInView }) {
    this.list = list;
    this.state = state;
    this.transcript = transcript;
    this.isInView = isInView;
    this.heads = new Map(); // id of the row behind a group, which stays when older steps join → the group's line
    for (const head of list.querySelectorAll("[data-fold]")) this.heads.set(head.dataset.fold, head);
    this.seen = {};
  }

  /** Regroup after a paint, but only if rows came or went, or a turn began or ended. */
  paint() {
    const { order, turn } = this.state;
    const now = { length: order.length, first: order[0], last: order.at(-1), turn: turn?.id };
    if (Object.keys(now).every((key) => now[key] === this.seen[key])) return;
    const ended = this.seen.turn;
    this.seen = now;
    const groups = groupSteps(
      order.map((id) => this.state.rows.get(id)),
      turn?.id,
      this.transcript.elements,
    );
    const grouped = new Set();
    for (const group of groups) {
      this.#showGroup(group, { ended: group.turn === ended });
      for (const id of group.ids) grouped.add(id);
    }
    for (const [key, head] of this.heads)
      if (!groups.some((group) => group.key === key)) this.#removeHead(key, head);
    for (const item of this.list.querySelectorAll("[data-folded]"))
      if (!grouped.has(item.dataset.row)) delete item.dataset.folded;
  }

  toggle(head) {
    this.#setOpen(head, head.dataset.open === undefined);
  }

  /** Open the group of a row that somebody looks for. */
  reveal(item) {
    const key = item?.dataset.folded;
    if (key) this.#setOpen(this.heads.get(key), true);
  }

  /**
   * `ended`: the turn ended just now, so its steps were on screen; older ones are measured before they have
   * their place.
   */
  #showGroup({ key, ids }, { ended }) {
    const items = ids.map((id) => this.transcript.elements.get(id));
    let head = this.heads.get(key);
    if (!head) {
      head = cloneTemplate("row-steps");
      head.dataset.fold = key;
      this.heads.set(key, head);
      // Keep the steps open while they are being read.
      if (items.some((item) => isInUse(item) || (ended && this.isInView(item)))) head.dataset.open = "";
    }
    if (items[0].previousElementSibling !== head) items[0].before(head);
    for (const item of items) item.dataset.folded = key;
    this.#setOpen(head, head.dataset.open !== undefined, items);
  }

  #setOpen(head, open, items = this.list.querySelectorAll(`[data-folded="${head.dataset.fold}"]`)) {
    head.toggleAttribute("data-open", open);
    const words = head.dataset[open ? "hide" : "show"];
    fillSlot(head, "label", words.replace("%s", String(items.length)));
    head.querySelector("button").setAttribute("aria-expanded", String(open));
    for (const item of items) item.toggleAttribute("data-unfolded", open);
  }

  #removeHead(key, head) {
    head.remove();
    this.heads.delete(key);
  }
}

/** True if it is opened, or has the focus, the pointer or part of the selection inside. */
function isInUse(item) {
  const selection = getSelection();
  const selected = !selection.isCollapsed && selection.containsNode(item, true);
  return selected || item.matches(":hover, :focus-within, :has(details[open])");
}

/**
 * Group the rows of each ended turn, up to its answer or the next message of the user.
 * @param {Row[]} rows
 * @param {string | undefined} runningTurn
 * @param {{ has: (id: string) => boolean }} shown
 * @returns {{ key: string, turn: string, ids: string[] }[]}
 */
export function groupSteps(rows, runningTurn, shown) {
  const groups = [];
  let part = [];
  const close = (next) => {
    const answered = part.at(-1)?.kind === "assistant";
    const body = answered ? part.slice(0, -1) : part;
    const behind = answered ? part.at(-1) : next?.kind === "user" ? next : null;
    const ids = body.map((row) => row.id).filter((id) => shown.has(id));
    if (behind && ids.length >= MIN_STEPS && part[0].turn_id !== runningTurn)
      groups.push({ key: behind.id, turn: part[0].turn_id, ids });
    part = [];
  };
  for (const row of rows) {
    if (!STEP_KINDS.has(row.kind) || (part.length && part[0].turn_id !== row.turn_id)) close(row);
    if (STEP_KINDS.has(row.kind)) part.push(row);
  }
  close(null);
  return groups;
}
