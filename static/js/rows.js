// What a row says on the page: labels shared with the server's copilot/transcript.py.

import { _ } from "./words.js";

export function templateOf(row) {
  switch (row.kind) {
    case "user":
      return "row-user";
    case "assistant":
      return "row-answer";
    case "reasoning":
      return "row-thought";
    case "tool_call":
    case "tool_result":
      return "row-tool";
    case "notice":
      return "row-notice";
    case "summary":
      return "row-summary";
    default:
      return null;
  }
}

const TOOL_LABELS = { bash_exec: "Bash", python_exec: "Python" }; // of the others, the name says it

export function toolLabel(tool) {
  if (tool in TOOL_LABELS) return TOOL_LABELS[tool];
  const words = tool.replaceAll("_", " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const TELLING = ["command", "question", "name", "file", "path", "url", "query", "title", "prompt"];

/** The argument that says most of what is done; lists and objects say nothing at a glance. */
export function toolDetail(given) {
  const plain = Object.values(given).find((value) => !/^[[{]/.test(value));
  return given[TELLING.find((name) => given[name])] ?? plain ?? "";
}

export function duration(milliseconds) {
  if (milliseconds < 1000) return `${milliseconds} ms`;
  if (milliseconds < 9_950) return `${(Math.floor((milliseconds + 50) / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor((milliseconds + 500) / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

export function thoughtLabel(grows, row, next) {
  if (grows) return _("Thinking…");
  if (!next) return _("Thought");
  const seconds = Math.max(1, Math.round((Date.parse(next.created_at) - Date.parse(row.created_at)) / 1000));
  if (seconds < 60) return _("Thought for {seconds} s", { seconds });
  return _("Thought for {minutes} min {seconds} s", { minutes: Math.floor(seconds / 60), seconds: seconds % 60 });
}

/** State and words of a tool row: its result, or how far its call has come. */
export function toolState(result, call, running) {
  if (result?.cancelled) return { state: "cancelled", note: _("stopped") };
  if (result) return { state: result.success ? "done" : "failed", note: result.success ? duration(result.duration_ms) : _("failed · {duration}", { duration: duration(result.duration_ms) }) };
  if (!running) return { state: "cancelled", note: _("stopped") };
  return { state: call?.state ?? "running", note: call?.progress || (call?.state === "waiting" ? _("waiting") : _("running…")) };
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" }); // made once: they are dear
const DAY_AND_TIME = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export function clock(iso) {
  const then = new Date(iso);
  if (Number.isNaN(then.getTime())) return "";
  const sameDay = then.toDateString() === new Date().toDateString();
  return (sameDay ? TIME : DAY_AND_TIME).format(then);
}
