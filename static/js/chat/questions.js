// Questions of the agent to a person, above the composer, each with the time that is left to answer it.

import { byId, cloneTemplate, createElement, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { paintCards, submitCard } from "./cards.js";

export class QuestionCards {
  /** @param {{ answer: (fields: object) => Promise<unknown> }} options */
  constructor({ answer }) {
    this.answer = answer;
    this.box = byId("questions");
    this.painted = null;
    setInterval(() => this.#paintCountdowns(), 1000);
  }

  /** @param {SessionState} state */
  paint({ questions }) {
    if (this.painted === questions) return;
    this.painted = questions;
    paintCards(this.box, questions, (question) => this.#createCard(question));
    this.#paintCountdowns();
  }

  #createCard(question) {
    const card = cloneTemplate("question-card");
    card.dataset.deadline = question.deadline;
    fillSlot(card, "question", question.question);
    findSlot(card, "choices").append(
      ...question.choices.map((choice) =>
        createElement("button", {
          type: "button",
          className: "choice",
          textContent: choice,
          onclick: () => this.#answer(card, { choice }),
        }),
      ),
    );
    const free = findSlot(card, "free");
    setVisible(free, question.allow_text || question.choices.length === 0);
    if (!question.choices.length) free.querySelector("input").placeholder = _("Your answer");
    card.onsubmit = (event) => {
      event.preventDefault();
      const text = card.elements.answer.value.trim();
      if (text) this.#answer(card, { text });
    };
    return card;
  }

  #answer(card, fields) {
    return submitCard(card, () => this.answer({ question_id: card.dataset.id, ...fields }));
  }

  #paintCountdowns() {
    for (const card of this.box.children) {
      const left = Math.max(0, Math.round((Date.parse(card.dataset.deadline) - Date.now()) / 1000));
      fillSlot(card, "countdown", `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`);
    }
  }
}
