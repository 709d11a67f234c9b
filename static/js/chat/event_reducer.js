// The state of one session, reduced from its events; the server's tests hold it against the same reducer in
// Python.
//
// Rows are replaced, never changed in place, so that `changed` tells a painter exactly what to look at
// again.

const RECENT_ROWS = 60; // rows of the turn in flight are among the last ones

/** @returns {SessionState} */
export function createState() {
  return {
    rows: new Map(), // id → row
    order: [], // ids by sequence
    turn: null, // {id, status, origin, run_ids, attempt, model, activity}
    queue: [],
    queueVersion: 0,
    questions: [],
    approvals: [], // calls that wait for a person
    autoApprove: { enabled: false, cap_microdollars: null },
    todos: [],
    goal: null, // {text, state, reason, continuations}
    context: { used_percent: null, estimated: true }, // how full the window was when the last turn ended
    artifacts: [], // files the agent made, oldest first: {file_id, name, type, size, created_at, call_id}
    calls: new Map(), // call id → {tool, state, progress} of the turn in flight
    title: "",
    state: "idle",
    hasOlder: false,
    deleted: false,
    limit: null,
    meter: null, // the last usage.metered: how fast, and how full the context is
    gap: false, // a delta did not fit: only a fresh snapshot helps
    ended: null, // the last ending, for the painter and the announcer
    changed: new Set(), // ids whose row came, changed or went
    replaced: false, // everything is new
  };
}

/**
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
export function reduceEvent(state, event) {
  const step = REDUCERS[event.kind];
  if (step) step(state, event);
  return state;
}

const REDUCERS = {
  "session.snapshot": applySnapshot,
  "session.changed": (state, event) => {
    state.title = event.title;
    state.state = event.state;
    state.deleted = Boolean(event.deleted);
    state.autoApprove = event.auto_approve ?? state.autoApprove;
  },
  "title.changed": (state, event) => {
    state.title = event.title;
  },
  "message.added": (state, event) => {
    putRow(state, event.message);
    state.queue = state.queue.filter((item) => item.id !== event.message.id);
  },
  "queue.changed": (state, event) => {
    if (event.version < state.queueVersion) return; // events may overtake each other
    state.queue = event.items.filter((item) => !state.rows.has(item.id));
    state.queueVersion = event.version;
  },
  "todos.changed": (state, event) => {
    state.todos = event.items;
  },
  "goal.judged": (state, event) => {
    const known = state.goal ?? { text: "", continuations: 0 };
    const continuations = event.state === "active" ? 0 : known.continuations;
    state.goal =
      event.state === "cleared"
        ? null
        : { text: event.text || known.text, state: event.state, reason: event.reason, continuations };
  },
  "goal.continued": (state, event) => {
    state.goal = {
      text: state.goal?.text ?? "",
      state: event.state,
      reason: event.reason,
      continuations: event.number,
    };
  },
  "artifact.added": (state, { file_id, name, type, size, created_at, call_id }) => {
    // Its bytes never change, so neither does its place.
    if (state.artifacts.some((known) => known.file_id === file_id)) return;
    const all = [...state.artifacts, { file_id, name, type, size, created_at, call_id }];
    state.artifacts = all.sort((one, other) =>
      one.created_at < other.created_at ? -1 : Number(one.created_at > other.created_at),
    ); // one that was brought back is not the newest
  },
  "artifact.removed": (state, { file_id }) => {
    state.artifacts = state.artifacts.filter((one) => one.file_id !== file_id);
  },
  "limit.reached": (state, event) => {
    state.limit = event;
  },

  "turn.queued": (state, event) => {
    state.turn = {
      id: event.turn_id,
      status: "queued",
      origin: event.origin,
      run_ids: event.run_ids,
      attempt: 0,
    };
    state.state = "running";
    state.limit = null;
  },
  "turn.started": (state, event) => {
    setTurn(state, event, {
      status: "running",
      run_ids: event.run_ids,
      model: event.model,
      activity: null,
      throttle: "",
    });
    state.state = "running";
  },
  "turn.throttled": (state, event) => {
    if (state.turn?.id === event.turn_id && state.turn.status === "queued")
      state.turn.throttle = event.reason; // another worker may have begun it meanwhile
  },
  "turn.recovering": (state, event) => {
    setTurn(state, event, { status: "queued", attempt: event.attempt, activity: { kind: "recovering" } });
  },
  "turn.paused": (state, event) => {
    setTurn(state, event, { status: "waiting" });
    state.state = "waiting";
  },
  "turn.succeeded": (state, event) => {
    for (const row of state.rows.values()) {
      if (row.kind === "assistant" && row.turn_id === event.turn_id)
        putRow(state, { ...row, duration_ms: event.summary.duration_ms });
    }
    endTurn(state, event);
  },
  "turn.failed": endTurn,
  "turn.cancelled": endTurn,
  "usage.metered": (state, event) => {
    state.meter = event;
  },
  "turn.heartbeat": (state, event) => setActivity(state, event, { phase: event.phase }),
  "model.retrying": (state, event) => setActivity(state, event, { activity: { ...event, kind: "retrying" } }),
  "step.started": (state, event) => setActivity(state, event, { activity: null, phase: "model" }),
  "step.finished": dropProposedCalls,
  "step.retracted": (state, event) => {
    dropProposedCalls(state);
    for (const id of event.row_ids) removeRow(state, id);
  },

  "reasoning.started": startBlock,
  "text.started": startBlock,
  "reasoning.extended": extendBlock,
  "text.extended": extendBlock,
  "reasoning.ended": endBlock,
  "text.ended": endBlock,

  "tool.proposed": (state, event) => setCall(state, event.call_id, { tool: event.tool, state: "proposed" }),
  "tool.called": (state, event) => {
    setCall(state, event.call_id, { tool: event.tool, state: "running" });
    if (event.message) putRow(state, event.message);
  },
  "tool.progressed": (state, event) => setCall(state, event.call_id, { progress: event.message }),
  "tool.state_changed": (state, event) => setCall(state, event.call_id, { state: event.state }),
  "tool.finished": (state, event) => {
    setCall(state, event.call_id, { state: event.success ? "done" : "failed", progress: "" });
    if (event.message) putRow(state, event.message);
  },
  "notice.posted": (state, event) => {
    if (event.message) putRow(state, event.message);
  },
  "context.compacting": (state, event) => setActivity(state, event, { phase: "compaction" }),
  "context.compacted": (state, event) => {
    setActivity(state, event, { phase: "model" });
    if (event.message) putRow(state, event.message);
  },
  "context.compaction_failed": (state, event) => setActivity(state, event, { phase: "model" }),
  "question.asked": (state, event) => {
    state.questions = [...state.questions.filter((one) => one.id !== event.question.id), event.question];
    setCall(state, event.question.call_id, { state: "waiting" });
  },
  "question.closed": (state, event) => {
    state.questions = state.questions.filter((one) => one.id !== event.question_id);
  },
  "approval.requested": (state, event) => {
    const asked = new Set(event.approvals.map((one) => one.id));
    state.approvals = [...state.approvals.filter((one) => !asked.has(one.id)), ...event.approvals];
  },
  "approval.decided": (state, event) => {
    state.approvals = state.approvals.filter((one) => one.id !== event.approval_id);
  },
};

/**
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function applySnapshot(state, event) {
  const older = rowsBefore(state, event);
  state.rows.clear();
  state.calls.clear();
  const turn = event.turn;
  for (const row of [...older, ...event.messages, ...(turn?.messages ?? [])]) state.rows.set(row.id, row);
  state.order = [...state.rows.values()].sort((a, b) => a.sequence - b.sequence).map((row) => row.id);
  state.turn = turn && { ...turn, messages: undefined };
  state.queue = event.queue;
  state.queueVersion = event.queue_version;
  state.questions = event.questions;
  state.approvals = event.approvals ?? [];
  state.autoApprove = event.auto_approve ?? state.autoApprove;
  state.todos = event.todos;
  state.goal = event.goal ?? null;
  state.context = event.context ?? state.context;
  state.artifacts = event.artifacts ?? [];
  state.title = event.title;
  state.state = event.state;
  if (!older.length) state.hasOlder = event.has_older;
  for (const { call_id } of [...state.questions, ...state.approvals])
    state.calls.set(call_id, { state: "waiting" });
  state.gap = false;
  state.changed.clear();
  state.replaced = true;
}

/**
 * The oldest row of a snapshot, if it has any.
 * @returns {Row | undefined}
 */
export function firstMessage({ messages, turn }) {
  const [first, own] = [messages[0], turn?.messages[0]];
  return first && own ? (first.sequence < own.sequence ? first : own) : (first ?? own);
}

/**
 * True if nothing is missing between the rows of the state and those of a snapshot.
 * @param {SessionState} state
 * @param {any} snapshot
 */
export function isContiguous(state, snapshot) {
  const first = firstMessage(snapshot);
  return (
    !first ||
    !state.order.length ||
    state.rows.has(first.id) ||
    first.sequence <= state.rows.get(state.order[0]).sequence
  );
}

/**
 * Rows of older pages than the snapshot's. What leads to a row never changes, so they stay if the
 * snapshot's first row is known.
 * @param {SessionState} state
 */
function rowsBefore(state, snapshot) {
  const place = state.order.indexOf(firstMessage(snapshot)?.id);
  return state.order.slice(0, Math.max(place, 0)).map((id) => state.rows.get(id));
}

/**
 * Add an older page in front; rows that are known stay as they are.
 * @param {SessionState} state
 * @param {Row[]} rows
 * @param {boolean} hasOlder
 */
export function addOlderRows(state, rows, hasOlder) {
  for (const row of rows) if (!state.rows.has(row.id)) putRow(state, row);
  state.hasOlder = hasOlder;
}

/**
 * Change the turn an event is about, also if its beginning was not seen.
 * @param {SessionState} state
 * @param {SessionEvent} event
 * @param {Partial<Turn>} fields
 */
function setTurn(state, event, fields) {
  const known =
    state.turn?.id === event.turn_id
      ? state.turn
      : { id: event.turn_id, origin: "", run_ids: [], attempt: 0 };
  state.turn = { ...known, ...fields };
}

/**
 * Change what the current turn is busy with; never a reason to believe that there is a turn.
 * @param {SessionState} state
 * @param {SessionEvent} event
 * @param {Partial<Turn>} fields
 */
function setActivity(state, event, fields) {
  if (state.turn?.id === event.turn_id) state.turn = { ...state.turn, ...fields };
}

/**
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function endTurn(state, event) {
  // A late ending of an older turn says nothing about the present one.
  if (state.turn && state.turn.id !== event.turn_id) return;
  state.turn = null;
  state.state = "idle";
  state.approvals = [];
  state.calls.clear();
  state.context = event.context ?? state.context;
  state.meter = null; // from here on the context is what the turn left
  state.ended = event;
  for (const id of state.order.slice(-RECENT_ROWS))
    if (state.rows.get(id).turn_id === event.turn_id) state.changed.add(id);
}

/**
 * Add a block, unless a snapshot has brought it: that may be further along than this event.
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function startBlock(state, event) {
  if (state.rows.has(event.row_id)) return;
  if (event.message) putRow(state, event.message);
  else state.gap = true;
}

/**
 * Append a delta at its offset in code points: applied twice it changes nothing, and beyond a gap it only
 * marks the gap.
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function extendBlock(state, event) {
  const row = state.rows.get(event.row_id);
  const length = row ? (row.points ?? countCodePoints(row.content)) : -1;
  if (event.offset > length) {
    state.gap = true;
    return;
  }
  const { content, points: total } =
    event.offset === length
      ? appendDelta(row, event.delta, length)
      : correctDelta(row, event.delta, event.offset);
  if (content === row.content) return;
  state.rows.set(row.id, { ...row, content, points: total });
  state.changed.add(row.id);
}

function appendDelta(row, delta, length) {
  return { content: row.content + delta, points: length + countCodePoints(delta) };
}

function correctDelta(row, delta, offset) {
  const text = [...row.content];
  const size = countCodePoints(delta);
  if (text.slice(offset, offset + size).join("") === delta) return { content: row.content };
  return { content: text.slice(0, offset).join("") + delta, points: offset + size };
}

/**
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function endBlock(state, event) {
  const row = state.rows.get(event.row_id);
  if (row) putRow(state, { ...row, streaming: false });
}

/**
 * Drop calls whose reply broke off before they were complete.
 * @param {SessionState} state
 */
function dropProposedCalls(state) {
  for (const [id, call] of state.calls) if (call.state === "proposed") state.calls.delete(id);
}

/**
 * @param {SessionState} state
 * @param {string} callId
 * @param {{ tool?: string, state?: string, progress?: string }} fields
 */
function setCall(state, callId, fields) {
  state.calls.set(callId, { ...state.calls.get(callId), ...fields });
  for (const id of state.order.slice(-RECENT_ROWS)) {
    if (state.rows.get(id).content?.call_id === callId) state.changed.add(id);
  }
}

/**
 * @param {SessionState} state
 * @param {Row} row
 */
function putRow(state, row) {
  const known = state.rows.get(row.id);
  state.rows.set(row.id, row);
  state.changed.add(row.id);
  if (known && known.sequence === row.sequence) return;
  if (known) state.order = state.order.filter((id) => id !== row.id);
  const place = findPosition(state, row.sequence);
  state.order.splice(place, 0, row.id);
  if (place > 0) state.changed.add(state.order[place - 1]); // "Thought for …" needs its successor
}

/**
 * @param {SessionState} state
 * @param {string} id
 */
function removeRow(state, id) {
  if (!state.rows.delete(id)) return;
  state.order = state.order.filter((other) => other !== id);
  state.changed.add(id);
}

/**
 * @param {SessionState} state
 * @param {number} sequence
 */
function findPosition(state, sequence) {
  let low = 0;
  let high = state.order.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (state.rows.get(state.order[middle]).sequence < sequence) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {string} text */
function countCodePoints(text) {
  let pairs = 0;
  for (let i = 0; i < text.length; i += 1) {
    const unit = text.charCodeAt(i);
    if (unit >= 0xd800 && unit < 0xdc00) pairs += 1;
  }
  return text.length - pairs;
}
