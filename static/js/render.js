// The transcript on the page: at most one paint per frame, and only of rows that changed.

import { clone, element, fill, show, slot } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { clock, duration, templateOf, thoughtLabel, toolDetail, toolLabel, toolState } from "./rows.js";
import { shellOf } from "./shell.js";
import { translated } from "./words.js";

const HIDDEN_FRAME = 250; // a hidden tab gets no animation frames, but its state must not pile up

export class Transcript {
  constructor(list, state) {
    this.list = list;
    this.state = state;
    this.elements = new Map(); // row id → its <li>
    this.texts = new WeakMap(); // prose element → GrowingMarkdown
    this.calls = new Map(); // call id → id of the row that shows it
    this.afterPaint = () => {};
    this.scheduled = false;
    for (const item of list.querySelectorAll("[data-row]")) this.elements.set(item.dataset.row, item);
    for (const time of list.querySelectorAll("time")) time.textContent = clock(time.dateTime);
    for (const row of state.rows.values()) if (row.kind === "tool_call") this.calls.set(row.content.call_id, row.id);
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    const paint = () => {
      this.scheduled = false;
      this.paint();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(paint);
    else setTimeout(paint, HIDDEN_FRAME);
  }

  paint() {
    const { state } = this;
    if (state.replaced) this.#removeStrangers();
    const ids = state.replaced ? state.order : state.changed;
    for (const id of ids) this.#paintRow(id);
    state.changed.clear();
    state.replaced = false;
    this.afterPaint();
  }

  #removeStrangers() {
    this.calls.clear();
    for (const [id, item] of this.elements) {
      if (this.state.rows.has(id)) continue;
      item.remove();
      this.elements.delete(id);
    }
  }

  #paintRow(id) {
    const row = this.state.rows.get(id);
    if (!row) return this.#remove(id);
    if (row.kind === "tool_call") this.calls.set(row.content.call_id, id);
    if (row.kind === "tool_result" && this.calls.has(row.content.call_id)) {
      return this.#paintTool(this.state.rows.get(this.calls.get(row.content.call_id)), row.content);
    }
    const item = this.#itemOf(row);
    if (item) PAINTERS[row.kind].call(this, item, row);
  }

  #remove(id) {
    this.elements.get(id)?.remove();
    this.elements.delete(id);
  }

  #itemOf(row) {
    const template = templateOf(row);
    if (!template) return null;
    const known = this.elements.get(row.id);
    if (known) return known;
    const item = clone(template);
    item.dataset.row = row.id;
    this.elements.set(row.id, item);
    this.#insert(item, row);
    return item;
  }

  #insert(item, row) {
    const { order } = this.state;
    for (let i = order.indexOf(row.id) + 1; i > 0 && i < order.length; i += 1) {
      const next = this.elements.get(order[i]);
      if (next) return next.before(item);
    }
    this.list.append(item);
  }

  /** A row still grows only as long as its turn does, whatever was the last thing heard of it. */
  grows(row) {
    return row.streaming && this.state.turn?.id === row.turn_id;
  }

  paintProse(prose, row) {
    if (!this.texts.has(prose)) this.texts.set(prose, new GrowingMarkdown(prose));
    this.texts.get(prose).update(row.content, !this.grows(row));
  }

  next(row) {
    const { order, rows } = this.state;
    const id = order[order.lastIndexOf(row.id) + 1];
    return id ? rows.get(id) : null;
  }

  /** A result whose call was on an older page stood alone; with its call it is one row. */
  paintToolCall(row) {
    const result = row.kind === "tool_result" ? row : this.#resultOf(row.content.call_id);
    if (result && result !== row) this.#remove(result.id);
    this.#paintTool(row, result?.content);
  }

  #resultOf(callId) {
    const { order, rows } = this.state;
    for (let i = order.length - 1; i >= 0; i -= 1) {
      const row = rows.get(order[i]);
      if (row.kind === "tool_result" && row.content.call_id === callId) return row;
      if (row.kind === "tool_call" && row.content.call_id === callId) return null;
    }
    return null;
  }

  #paintTool(row, result) {
    const item = this.#itemOf(row);
    const { call_id: callId, tool, arguments: given = {} } = row.content;
    const { state, note } = toolState(result, this.state.calls.get(callId), this.state.turn?.id === row.turn_id);
    item.dataset.state = state;
    fill(item, "label", toolLabel(tool));
    fill(item, "detail", toolDetail(given));
    fill(item, "state", note);
    const list = slot(item, "arguments");
    if (!list.childElementCount) {
      for (const [name, value] of Object.entries(given)) {
        list.append(element("dt", { textContent: name }), element("dd", { textContent: value }));
      }
    }
    const shell = shellOf(tool, given, result?.preview ?? "");
    paintShell(slot(item, "shell"), shell);
    show(list, !shell);
    show(fill(item, "result", shell ? "" : (result?.preview ?? "")), Boolean(result?.preview) && !shell);
    const file = slot(item, "file");
    if (result?.file_id) file.href = `/api/v1/files/${result.file_id}/download`;
    show(file, Boolean(result?.file_id));
    const session = slot(item, "session");
    if (result?.session_id) session.href = `/chat/${result.session_id}/`;
    show(session, Boolean(result?.session_id));
  }
}

const PAINTERS = {
  user(item, row) {
    fill(item, "text", row.content);
    show(fill(item, "author", row.author), Boolean(row.author));
    fill(item, "time", clock(row.created_at));
    paintVersions(item, row);
    const files = slot(item, "files");
    show(files, row.attachments.length > 0);
    if (files.childElementCount !== row.attachments.length) {
      files.replaceChildren(...row.attachments.map((file) => element("li", {}, fileLink(file))));
    }
  },
  assistant(item, row) {
    item.toggleAttribute("data-streaming", this.grows(row));
    this.paintProse(slot(item, "prose"), row);
    fill(item, "model", row.model);
    fill(item, "time", clock(row.created_at));
    fill(item, "duration", row.duration_ms == null ? "" : duration(row.duration_ms));
  },
  reasoning(item, row) {
    item.dataset.state = this.grows(row) ? "running" : "done";
    fill(item, "label", thoughtLabel(this.grows(row), row, this.next(row)));
    this.paintProse(slot(item, "prose"), row);
  },
  tool_call(item, row) {
    this.paintToolCall(row);
  },
  tool_result(item, row) {
    this.paintToolCall(row);
  },
  notice(item, row) {
    const { code, label, hint, action, details, model, request_id: request } = row.content;
    item.dataset.code = code;
    fill(item, "label", translated(label)); // the server's words, which come with the page's
    fill(item, "hint", translated(hint));
    show(slot(item, "retry"), action === "retry");
    const other = action === "retry" || (action === "none" && model); // what a provider would not do, another may
    show(slot(item, "switch"), Boolean(other) && item.querySelectorAll("option").length > 2);
    show(slot(item, "continue"), action === "continue");
    show(fill(item, "details", details ?? ""), Boolean(details));
    show(fill(item, "source", [model, request].filter(Boolean).join(" · ")), Boolean(model));
    show(slot(item, "more"), Boolean(details || model));
  },
  summary(item, row) {
    this.paintProse(slot(item, "prose"), row);
  },
};

function paintShell(box, shell) {
  show(box, Boolean(shell));
  for (const [name, text] of Object.entries(shell ?? {})) show(fill(box, name, text), Boolean(text) || name === "command");
}

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** ‹ 2/3 ›, where a message has several versions. */
function paintVersions(item, { branch, versions = 1 }) {
  item.toggleAttribute("data-versions", versions > 1);
  show(slot(item, "versions"), versions > 1);
  fill(item, "version", `${branch + 1}/${versions}`);
  item.querySelector('[data-act="older-version"]').disabled = branch === 0;
  item.querySelector('[data-act="newer-version"]').disabled = branch + 1 >= versions;
}

function fileLink(file) {
  if (PICTURES.includes(file.type)) return pictureLink(file);
  const icon = document.querySelector("#row-user").content.querySelector(".row-acts .icon").cloneNode(true);
  icon.firstElementChild.setAttribute("href", "#i-file");
  return element("a", { href: `/api/v1/files/${file.file_id}/download` }, icon, file.name);
}

function pictureLink(file) {
  const src = `/api/v1/files/${file.file_id}/download?inline=true`;
  return element("a", { className: "picture", href: src }, element("img", { src, alt: file.name, loading: "lazy" }));
}
