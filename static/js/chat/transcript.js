// The transcript: at most one paint per frame, and only of rows that changed.

import { cloneTemplate, createElement, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _, translate } from "../lib/i18n.js";
import { StreamingMarkdown } from "../lib/markdown.js";
import { formatDuration, formatTime, thoughtLabel, toolLabel, toolStatus, toolSummary } from "./labels.js";
import { WholeCalls } from "./whole_calls.js";

const ROW_TEMPLATES = {
  user: "row-user",
  assistant: "row-answer",
  reasoning: "row-thought",
  tool_call: "row-tool",
  tool_result: "row-tool",
  notice: "row-notice",
  summary: "row-summary",
};
const HIDDEN_FRAME_MS = 250; // a hidden tab gets no animation frames, but its state must not pile up

export class Transcript {
  /**
   * @param {PageElement} list
   * @param {SessionState} state
   */
  constructor(list, state) {
    this.list = list;
    this.state = state;
    this.elements = new Map(); // row id → its <li>
    this.texts = new WeakMap(); // prose element → GrowingMarkdown
    this.calls = new Map(); // call id → id of the row that shows it
    this.wholeCalls = new WholeCalls(list, state);
    this.afterPaint = () => {};
    this.scheduled = false;
    for (const item of list.querySelectorAll("[data-row]")) this.elements.set(item.dataset.row, item);
    for (const time of list.querySelectorAll("time")) time.textContent = formatTime(time.dateTime);
    for (const row of state.rows.values())
      if (row.kind === "tool_call") this.calls.set(row.content.call_id, row.id);
  }

  schedulePaint() {
    if (this.scheduled) return;
    this.scheduled = true;
    const paint = () => {
      this.scheduled = false;
      this.paint();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(paint);
    else setTimeout(paint, HIDDEN_FRAME_MS);
  }

  paint() {
    const { state } = this;
    if (state.replaced) this.#removeMissing();
    const ids = state.replaced ? state.order : [...state.changed];
    if (state.replaced || !state.turn || ids.some((id) => this.#continues(id))) this.#dropRetracted();
    for (const id of ids) this.#paintRow(id);
    state.changed.clear();
    state.replaced = false;
    this.afterPaint();
  }

  #removeMissing() {
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
    const item = this.#ensureItem(row);
    if (item) PAINTERS[row.kind].call(this, item, row);
  }

  #remove(id) {
    const item = this.elements.get(id);
    this.elements.delete(id);
    if (item?.matches(".answer, .thought") && this.state.turn?.status === "running") this.#retract(item);
    else item?.remove();
  }

  /** Keep what a failed call has written, dimmed, until the next attempt writes something. */
  #retract(item) {
    item.dataset.retracted = "";
    delete item.dataset.row;
    item.toggleAttribute("data-streaming", false);
  }

  #dropRetracted() {
    for (const item of this.list.querySelectorAll("[data-retracted]")) item.remove();
  }

  /** True if a row of the running turn has come or grown. */
  #continues(id) {
    const row = this.state.rows.get(id);
    return Boolean(row) && row.turn_id === this.state.turn?.id && row.kind !== "user";
  }

  #ensureItem(row) {
    const template = ROW_TEMPLATES[row.kind];
    if (!template) return null;
    const known = this.elements.get(row.id);
    if (known) return known;
    const item = cloneTemplate(template);
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

  /**
   * A row grows only as long as its turn runs, whatever its last event was.
   * @param {Row} row
   */
  isStreaming(row) {
    return row.streaming && this.state.turn?.id === row.turn_id;
  }

  paintProse(prose, row) {
    if (!this.texts.has(prose)) this.texts.set(prose, new StreamingMarkdown(prose));
    this.texts.get(prose).update(row.content, !this.isStreaming(row));
  }

  nextRow(row) {
    const { order, rows } = this.state;
    const id = order[order.lastIndexOf(row.id) + 1];
    return id ? rows.get(id) : null;
  }

  /**
   * Paint a call with its result in one row; a result whose call was on an older page had a row of its own.
   * @param {Row} row
   */
  paintToolCall(row) {
    const result = row.kind === "tool_result" ? row : this.#findResult(row.content.call_id);
    if (result && result !== row) this.#remove(result.id);
    this.#paintTool(row, result?.content);
  }

  #findResult(callId) {
    const { order, rows } = this.state;
    for (let i = order.length - 1; i >= 0; i -= 1) {
      const row = rows.get(order[i]);
      if (row.kind === "tool_result" && row.content.call_id === callId) return row;
      if (row.kind === "tool_call" && row.content.call_id === callId) return null;
    }
    return null;
  }

  #paintTool(row, result) {
    const item = this.#ensureItem(row);
    const { call_id: callId, tool, arguments: given = {}, label, running_label: runningLabel } = row.content;
    const { state, note } = toolStatus(
      result,
      this.state.calls.get(callId),
      this.state.turn?.id === row.turn_id,
    );
    item.dataset.state = state;
    fillSlot(item, "label", translate((result ? label : runningLabel) || toolLabel(tool)));
    fillSlot(item, "detail", toolSummary(given));
    fillSlot(item, "state", note);
    const list = findSlot(item, "arguments");
    if (!list.childElementCount) {
      for (const [name, value] of Object.entries(given)) {
        list.append(createElement("dt", { textContent: name }), createElement("dd", { textContent: value }));
      }
    }
    this.#paintResult(item, tool, given, result);
    const file = findSlot(item, "file");
    if (result?.file_id) file.href = `/api/v1/files/${result.file_id}/download`;
    setVisible(file, Boolean(result?.file_id));
    this.wholeCalls.update(item, row, result);
    const session = findSlot(item, "session");
    if (result?.session_id) session.href = `/chat/${result.session_id}/`;
    setVisible(session, Boolean(result?.session_id));
  }

  /** Paint the previews, but nothing over what is shown whole. */
  #paintResult(item, tool, given, result) {
    const whole = this.wholeCalls.shownWhole(item);
    if (whole === "output") return;
    const shell = parseProgramOutput(tool, given, result?.preview ?? "");
    paintProgramOutput(findSlot(item, "shell"), shell && whole ? { ...shell, command: undefined } : shell);
    setVisible(findSlot(item, "arguments"), !shell);
    setVisible(
      fillSlot(item, "result", shell ? "" : (result?.preview ?? "")),
      Boolean(result?.preview) && !shell,
    );
  }
}

const PAINTERS = {
  user(item, row) {
    if (row.origin) item.dataset.origin = row.origin; // no person wrote it
    fillSlot(item, "text", row.content);
    setVisible(fillSlot(item, "author", row.author), Boolean(row.author));
    fillSlot(item, "time", formatTime(row.created_at));
    paintVersions(item, row);
    const files = findSlot(item, "files");
    setVisible(files, row.attachments.length > 0);
    if (files.childElementCount !== row.attachments.length) {
      files.replaceChildren(...row.attachments.map((file) => createElement("li", {}, createFileLink(file))));
    }
  },
  assistant(item, row) {
    item.toggleAttribute("data-streaming", this.isStreaming(row));
    this.paintProse(findSlot(item, "prose"), row);
    fillSlot(item, "model", row.model);
    fillSlot(item, "time", formatTime(row.created_at));
    fillSlot(item, "duration", row.duration_ms == null ? "" : formatDuration(row.duration_ms));
  },
  reasoning(item, row) {
    item.dataset.state = this.isStreaming(row) ? "running" : "done";
    fillSlot(item, "label", thoughtLabel(this.isStreaming(row), row, this.nextRow(row)));
    this.paintProse(findSlot(item, "prose"), row);
  },
  tool_call(_item, row) {
    this.paintToolCall(row);
  },
  tool_result(_item, row) {
    this.paintToolCall(row);
  },
  notice(item, row) {
    const { code, label, hint, action, details, model, request_id: request } = row.content;
    item.dataset.code = code;
    fillSlot(item, "label", translate(label)); // a text of the server, which the page's catalogue holds too
    fillSlot(item, "hint", translate(hint));
    setVisible(findSlot(item, "retry"), action === "retry");
    const other = action === "retry" || (action === "none" && model); // what a provider would not do, another may
    setVisible(findSlot(item, "switch"), Boolean(other) && item.querySelectorAll("option").length > 2);
    setVisible(findSlot(item, "continue"), action === "continue");
    setVisible(fillSlot(item, "details", details ?? ""), Boolean(details));
    setVisible(fillSlot(item, "source", [model, request].filter(Boolean).join(" · ")), Boolean(model));
    setVisible(findSlot(item, "more"), Boolean(details || model));
  },
  summary(item, row) {
    this.paintProse(findSlot(item, "prose"), row);
  },
};

function paintProgramOutput(box, shell) {
  setVisible(box, Boolean(shell));
  for (const [name, text] of Object.entries(shell ?? {}).filter(([, text]) => text !== undefined))
    setVisible(fillSlot(box, name, text), Boolean(text) || name === "command");
}

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** Paint ‹ 2/3 › where a message has several versions. */
function paintVersions(item, { branch, versions = 1 }) {
  item.toggleAttribute("data-versions", versions > 1);
  setVisible(findSlot(item, "versions"), versions > 1);
  fillSlot(item, "version", `${branch + 1}/${versions}`);
  item.querySelector('[data-act="older-version"]').disabled = branch === 0;
  item.querySelector('[data-act="newer-version"]').disabled = branch + 1 >= versions;
}

function createFileLink(file) {
  if (IMAGE_TYPES.includes(file.type)) return createImageLink(file);
  const icon = cloneTemplate("row-user").querySelector(".row-acts .icon");
  icon.firstElementChild.setAttribute("href", "#i-file");
  return createElement("a", { href: `/api/v1/files/${file.file_id}/download` }, icon, file.name);
}

function createImageLink(file) {
  const src = `/api/v1/files/${file.file_id}/download?inline=true`;
  return createElement(
    "a",
    { className: "picture", href: src },
    createElement("img", { src, alt: file.name, loading: "lazy" }),
  );
}

const PROGRAMS = { bash_exec: "command", python_exec: "code" };

/** Split the output of a program; null if the tool is none or its result cannot be read. */
function parseProgramOutput(tool, given, preview) {
  const name = PROGRAMS[tool];
  if (!name) return null;
  const command = given[name] ?? "";
  const said = preview ? parsePreview(preview) : {};
  if (!said || (preview && !("exit_code" in said))) return null;
  const status = said.timed_out
    ? _("timed out")
    : said.exit_code === undefined
      ? ""
      : _("exit {code}", { code: said.exit_code });
  return {
    command,
    status,
    stdout: said.stdout ?? "",
    stderr: said.stderr ?? "",
    message: said.message ?? "",
  };
}

/**
 * Parse a preview that may be cut: its keys are sorted, so that only the end of stdout or stderr is
 * missing.
 */
function parsePreview(preview) {
  for (const text of [preview, `${preview.replace(/\\(u[0-9a-fA-F]{0,3})?$/, "")}"}`]) {
    try {
      return JSON.parse(text);
    } catch {
      // the next form
    }
  }
  return null;
}
