// Words for what the transcript and the frame around it show: tools, thoughts, times, activity and goals.
//
// Labels of rows are the same as the server's, which paints them first.

import { _, translate } from "../lib/i18n.js";

const TOOL_LABELS = { bash_exec: "Bash", python_exec: "Python" }; // of the others, the name says it

/** @param {string} tool */
export function toolLabel(tool) {
  if (tool in TOOL_LABELS) return TOOL_LABELS[tool];
  const words = tool.replaceAll("_", " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const SUMMARY_ARGUMENTS = ["command", "question", "name", "file", "path", "url", "query", "title", "prompt"];

/**
 * The argument that tells most about a call; lists and objects tell nothing at a glance.
 * @param {Record<string, string>} given
 * @returns {string}
 */
export function toolSummary(given) {
  const plain = Object.values(given).find((value) => !/^[[{]/.test(value));
  return given[SUMMARY_ARGUMENTS.find((name) => given[name])] ?? plain ?? "";
}

/** @param {number} milliseconds */
export function formatDuration(milliseconds) {
  if (milliseconds < 1000) return `${milliseconds} ms`;
  if (milliseconds < 9_950) return `${(Math.floor((milliseconds + 50) / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor((milliseconds + 500) / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * @param {boolean} grows
 * @param {Row} row
 * @param {Row | null} next
 */
export function thoughtLabel(grows, row, next) {
  if (grows) return _("Thinking…");
  if (!next) return _("Thought");
  const seconds = Math.max(1, Math.round((Date.parse(next.created_at) - Date.parse(row.created_at)) / 1000));
  if (seconds < 60) return _("Thought for {seconds} s", { seconds });
  return _("Thought for {minutes} min {seconds} s", {
    minutes: Math.floor(seconds / 60),
    seconds: seconds % 60,
  });
}

/**
 * State and label of a tool row: its result, or the progress of its call.
 * @param {any} result
 * @param {{ state?: string, progress?: string } | undefined} call
 * @param {boolean} running
 */
export function toolStatus(result, call, running) {
  if (result?.cancelled) return { state: "cancelled", note: _("stopped") };
  if (result) {
    const parts = [
      result.success ? "" : _("failed"),
      result.summary ?? "",
      formatDuration(result.duration_ms),
    ];
    return {
      state: result.success && !result.program_failed ? "done" : "failed",
      note: parts.filter(Boolean).join(" · "),
    };
  }
  if (!running) return { state: "cancelled", note: _("stopped") };
  return {
    state: call?.state ?? "running",
    note: call?.progress || (call?.state === "waiting" ? _("waiting") : _("running…")),
  };
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" }); // costly to create
const DAY_AND_TIME = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  hour: "numeric",
  minute: "2-digit",
});

/**
 * The time of today, or day and time; empty if it is no date.
 * @param {string} iso
 */
export function formatTime(iso) {
  const then = new Date(iso);
  if (Number.isNaN(then.getTime())) return "";
  const sameDay = then.toDateString() === new Date().toDateString();
  return (sameDay ? TIME : DAY_AND_TIME).format(then);
}

const GOAL_STATES = {
  active: _("Working towards"),
  paused: _("Goal paused"),
  achieved: _("Goal reached"),
  exhausted: _("Goal on hold"),
};

/** @param {Goal} goal */
export function goalLabel({ state, text, reason }) {
  return [`${GOAL_STATES[state]}: ${text}`, reason].filter(Boolean).join(" — ");
}

const THROTTLED = {
  user: _("Waiting for another of your chats to finish…"),
  address: _("Waiting: your network has many chats running…"),
};
const PHASES = {
  model: _("Thinking…"),
  tool: _("Working…"),
  retry: _("Trying again…"),
  question: _("Waiting for your answer…"),
  compaction: _("Summarising…"),
};

/** True if a call of the turn has no result yet. */
function hasOpenCall(rows, order, turnId) {
  const answered = new Set();
  for (let i = order.length - 1; i >= 0; i -= 1) {
    const { kind, content, turn_id: turn } = rows.get(order[i]);
    if (turn !== turnId) return false;
    if (kind === "tool_result") answered.add(content.call_id);
    else if (kind === "tool_call" && !answered.has(content.call_id)) return true;
  }
  return false;
}

/**
 * Say what the turn is busy with, or nothing where the transcript shows it.
 * @param {SessionState} state
 * @param {boolean} isPatient a worker may still come at once
 */
export function activityLabel({ turn, questions, rows, order, calls }, isPatient) {
  if (!turn || turn.status === "waiting" || questions.length) return "";
  const last = rows.get(order.at(-1));
  const { activity } = turn;
  if (turn.status === "queued" && turn.throttle) return THROTTLED[turn.throttle];
  if (activity?.kind === "recovering") return _("Reconnecting to your answer…");
  if (activity?.kind === "retrying") {
    const label = translate(activity.label) || _("Trying again");
    return _("{label} ({attempt} of {attempts})…", { ...activity, label });
  }
  if (last?.streaming && last.content) return "";
  for (const call of calls.values()) {
    if (call.state === "proposed") return _("Preparing {tool}…", { tool: call.tool.replaceAll("_", " ") });
  }
  if (last?.kind === "tool_call" || hasOpenCall(rows, order, turn.id)) return ""; // its row says so
  if (turn.status === "queued" && !isPatient) return _("Waiting for a free worker…");
  return PHASES[turn.phase] ?? _("Thinking…");
}
