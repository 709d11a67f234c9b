// What stands above the composer: todos, open questions, and messages that wait for the running turn.

import { focusComposer, paintCards, submit } from "./cards.js";
import { byId, clone, delegate, element, fill, show, slot } from "./dom.js";
import { Limit } from "./limit.js";
import { _ } from "./words.js";

const MARKS = { pending: "○", in_progress: "◐", completed: "●" };

export class Dock {
  /** `send(kind, fields)` sends a command and shows a refusal; `answer(fields)` answers a question or fails; `onTooLate(text)`: a change to what has left the queue. */
  constructor({ send, answer, onTooLate }) {
    Object.assign(this, { send, answer, onTooLate });
    this.queue = byId("queue");
    this.questions = byId("questions");
    this.limit = new Limit();
    this.seen = { limit: null }; // what was painted last, by identity
    this.editing = null;
    delegate(this.queue, {
      "send-now": (button) => this.#onQueued("queue.send_now", button),
      "queue-remove": (button) => this.#onQueued("queue.remove", button),
      "queue-up": (button) => this.#onQueued("queue.move", button, { position: this.#positionOf(button) - 1 }),
      "queue-edit": (button) => this.#edit(button.closest(".chip").dataset.message),
      "queue-cancel": () => this.#edit(null),
    });
    setInterval(() => this.#countDown(), 1000);
  }

  paint(state, sending) {
    this.state = state;
    if (this.seen.todos !== state.todos || this.seen.running !== Boolean(state.turn)) this.#paintTodos(state);
    if (this.seen.limit !== state.limit) this.#paintLimit(state.limit);
    if (this.seen.questions !== state.questions) this.#paintQuestions(state.questions);
    if (this.seen.queue !== state.queue || this.seen.sending !== sending.length) this.#paintQueue(state.queue, sending);
    this.seen = {
      todos: state.todos,
      limit: state.limit,
      running: Boolean(state.turn),
      questions: state.questions,
      queue: state.queue,
      sending: sending.length,
    };
  }

  #paintTodos({ todos, turn }) {
    const box = byId("todos");
    const done = todos.filter((todo) => todo.status === "completed").length;
    show(box, todos.length > 0 && (Boolean(turn) || done < todos.length));
    const current = todos.find((todo) => todo.status === "in_progress") ?? todos.find((todo) => todo.status === "pending");
    fill(box, "current", current?.text ?? _("All done"));
    fill(box, "count", _("{done} of {all}", { done, all: todos.length }));
    slot(box, "items").replaceChildren(
      ...todos.map((todo) => {
        const mark = element("span", { textContent: MARKS[todo.status], ariaHidden: "true" });
        const words = element("span", { className: "unseen", textContent: `${todo.status.replace("_", " ")}: ` });
        const item = element("li", {}, mark, words, todo.text);
        item.dataset.status = todo.status;
        return item;
      }),
    );
  }

  #paintLimit(limit) {
    this.limit.paint(limit);
  }

  // --- queue ---

  #paintQueue(items, sending) {
    const focused = document.activeElement?.closest?.("#queue [data-act]");
    const again = focused && [focused.closest(".chip").dataset.message, focused.dataset.act];
    const waiting = sending.map((one) => element("li", { className: "chip pending" }, element("span", { className: "chip-text", textContent: one.text, dir: "auto" })));
    show(this.queue, items.length + waiting.length > 0);
    const editor = this.#openEditor(items);
    for (const old of [...this.queue.children]) if (old !== editor) old.remove();
    let passed = !editor;
    for (const item of items) {
      if (editor && item.id === this.editing) passed = true;
      else if (passed) this.queue.append(this.#entry(item));
      else editor.before(this.#entry(item)); // around it: moved itself, it would lose its focus
    }
    this.queue.append(...waiting);
    if (again) this.#refocus(...again);
  }

  /** What somebody writes in stays as it is; when its message has been taken, the words are handed back. */
  #openEditor(items) {
    const editor = this.queue.querySelector(".editing");
    if (!editor || items.some((item) => item.id === this.editing)) return editor;
    this.editing = null;
    const area = editor.querySelector("textarea");
    if (area.value.trim() !== area.defaultValue) this.onTooLate(area.value);
    return null;
  }

  #entry(item) {
    return item.id === this.editing ? this.#editor(item) : this.#chip(item);
  }

  #refocus(message, act) {
    const chip = this.queue.querySelector(`[data-message="${message}"]`);
    const control = chip?.querySelector(`[data-act="${act}"]:not([hidden])`) ?? chip?.querySelector("[data-act]:not([hidden])");
    if (control) control.focus();
    else focusComposer();
  }

  #chip(item) {
    const chip = clone("queued-chip");
    chip.dataset.message = item.id;
    fill(chip, "text", item.text);
    show(chip.querySelector('[data-act="queue-up"]'), this.#place(item.id) > 0);
    return chip;
  }

  #editor(item) {
    const chip = clone("queued-editor");
    chip.dataset.message = item.id;
    const area = chip.querySelector("textarea");
    area.value = area.defaultValue = item.text;
    chip.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      const text = area.value.trim();
      this.#edit(null);
      if (text && text !== item.text) this.send("queue.edit", { message_id: item.id, text });
    };
    area.onkeydown = (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#edit(null);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        chip.querySelector("form").requestSubmit();
      }
    };
    return chip;
  }

  #edit(id) {
    const before = this.editing;
    this.editing = id;
    this.queue.replaceChildren();
    this.#paintQueue(this.state.queue, []);
    if (id) this.queue.querySelector("textarea")?.focus();
    else this.#refocus(before, "queue-edit");
  }

  #onQueued(kind, button, fields = {}) {
    this.send(kind, { message_id: button.closest(".chip").dataset.message, ...fields });
  }

  #place(id) {
    return this.state.queue.findIndex((item) => item.id === id);
  }

  #positionOf(button) {
    const item = this.state.queue[this.#place(button.closest(".chip").dataset.message)];
    return item?.position ?? 1;
  }

  // --- questions ---

  #paintQuestions(questions) {
    paintCards(this.questions, questions, (question) => this.#card(question));
    this.#countDown();
  }

  #card(question) {
    const card = clone("question-card");
    card.dataset.deadline = question.deadline;
    fill(card, "question", question.question);
    slot(card, "choices").append(
      ...question.choices.map((choice) => element("button", { type: "button", className: "choice", textContent: choice, onclick: () => this.#answer(card, { choice }) })),
    );
    const free = slot(card, "free");
    show(free, question.allow_text || question.choices.length === 0);
    if (!question.choices.length) free.querySelector("input").placeholder = _("Your answer");
    card.onsubmit = (event) => {
      event.preventDefault();
      const text = card.elements.answer.value.trim();
      if (text) this.#answer(card, { text });
    };
    return card;
  }

  #answer(card, fields) {
    return submit(card, () => this.answer({ question_id: card.dataset.id, ...fields }));
  }

  #countDown() {
    for (const card of this.questions.children) {
      const left = Math.max(0, Math.round((Date.parse(card.dataset.deadline) - Date.now()) / 1000));
      fill(card, "countdown", `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`);
    }
  }
}
