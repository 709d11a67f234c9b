// The agent's to-do list above the composer: the current item, how many are done, and all of them.

import { byId, createElement, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";

const MARKS = { pending: "○", in_progress: "◐", completed: "●" };

export class TodoList {
  constructor() {
    this.painted = {};
  }

  /** @param {SessionState} state */
  paint({ todos, turn }) {
    if (this.painted.todos === todos && this.painted.isRunning === Boolean(turn)) return;
    this.painted = { todos, isRunning: Boolean(turn) };
    const box = byId("todos");
    const done = todos.filter((todo) => todo.status === "completed").length;
    setVisible(box, todos.length > 0 && (Boolean(turn) || done < todos.length));
    const current =
      todos.find((todo) => todo.status === "in_progress") ?? todos.find((todo) => todo.status === "pending");
    fillSlot(box, "current", current?.text ?? _("All done"));
    fillSlot(box, "count", _("{done} of {all}", { done, all: todos.length }));
    findSlot(box, "items").replaceChildren(
      ...todos.map((todo) => {
        const mark = createElement("span", { textContent: MARKS[todo.status], ariaHidden: "true" });
        const words = createElement("span", {
          className: "unseen",
          textContent: `${todo.status.replace("_", " ")}: `,
        });
        const item = createElement("li", {}, mark, words, todo.text);
        item.dataset.status = todo.status;
        return item;
      }),
    );
  }
}
