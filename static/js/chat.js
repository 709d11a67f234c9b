// The chat page: wires the socket, the fold and the parts of the page together.

import { call } from "./api.js";
import { Approvals } from "./approvals.js";
import { Artifacts } from "./artifacts.js";
import { Aside } from "./aside.js";
import { Composer } from "./composer.js";
import { focusComposer } from "./cards.js";
import { confirmed } from "./confirm.js";
import { copyBy, copyCode } from "./copying.js";
import { byId, delegate, fill, show, slot } from "./dom.js";
import { Dock } from "./dock.js";
import { emptyState, fold, meets } from "./fold.js";
import { typeset } from "./formulas.js";
import { highlight } from "./highlight.js";
import { Notifier } from "./notifier.js";
import { Older } from "./older.js";
import { Outbox } from "./outbox.js";
import { Palette } from "./palette.js";
import { Transcript } from "./render.js";
import { Scroll } from "./scroll.js";
import { Sidebar } from "./sidebar.js";
import { Socket } from "./socket.js";
import { Steps } from "./steps.js";
import { startTheme } from "./theme.js";
import { ThisChat } from "./thischat.js";
import { announce, toast } from "./toast.js";
import { Versions } from "./versions.js";
import { _, refusal, translated } from "./words.js";

const QUIET_FOR = 1500; // a connection back within this time was never worth a word

const PATIENT_FOR = 2500;
const NEWS = /^(message|text|reasoning|tool|notice|context|session\.snapshot)\b/; // what adds something to read

const app = byId("app");
let sessionId = app.dataset.session || null;
const state = emptyState();
const embedded = byId("snapshot");
if (embedded) fold(state, JSON.parse(embedded.textContent));
state.replaced = false; // the server has painted it already
const { at, frozen } = app.dataset; // a message to show, and whether the page ends before the newest (W2.9)
let known = Boolean(embedded) || !sessionId; // an older page, painted for readers without a script, knows no state

const transcript = new Transcript(byId("transcript"), state);
const older = new Older(state, { sessionId: () => sessionId, onLoaded: paintInPlace });
const scroll = new Scroll(byId("scroll"), byId("pill"), { loadOlder: () => older.load() });
const sidebar = new Sidebar({ current: sessionId, onGone: leave });
const socket = new Socket({ onEvent: take, onStatus: connection });
const command = (kind, fields) => socket.command(kind, { session_id: sessionId, ...fields });
const answer = (fields) => socket.command("question.answer", fields);
const artifacts = new Artifacts(state, transcript, { session: () => sessionId });
const composer = new Composer({ sessionId, onSend: send, onCommand: obey, onStop: stop, onRecall: recall });
const dock = new Dock({ send: attempt, answer, onTooLate: tooLate });
const approvals = new Approvals({
  decide: (fields) => socket.command("approval.decide", fields),
  allow: (fields) => call("PATCH", `/sessions/${sessionId}`, { auto_approve: fields }),
});
const outbox = new Outbox(byId("transcript"));
const palette = new Palette();
const notifier = new Notifier();
notifier.onSeen = () => transcript.schedule();
const steps = new Steps(byId("transcript"), state, transcript, { isLookedAt: (item) => scroll.isLookedAt(item) });
const thisChat = new ThisChat({ sessionId: () => sessionId, begin: startSession });
const aside = new Aside({ stop: () => attempt("side.stop") });
const versions = new Versions(byId("transcript"), state, { command, choices: () => composer.choices(), onSent: () => scroll.toEnd() });

transcript.afterPaint = () => {
  steps.paint();
  outbox.paint(state);
  dock.paint(state, outbox.queued(state));
  approvals.paint(state);
  artifacts.paint();
  paintFrame();
  scroll.settle(news);
  news = false;
};
let news = false;

// --- events in ---

function take(event) {
  if (event.kind === "session.changed") changed(event);
  if (event.kind === "title.changed") sidebar.changed(event);
  if (event.kind === "export.finished") return sidebar.exports.finished(event);
  if (event.kind === "artifact.removed") artifacts.lost(event); // of whichever chat: it may be open here
  if (event.kind === "error") return toast(refusal(event));
  if (event.kind.startsWith("side.")) return aside.take(event);
  if (event.session_id === sessionId && frozen === undefined) follow(event);
}

let held = null; // what came behind a snapshot while pages before it are fetched
function follow(event) {
  if (held) held.push(event);
  else if (event.kind === "session.snapshot" && !scroll.following && !meets(state, event)) goOnReading(event);
  else hear(event);
}

/** Whoever reads on older pages stays there: what lies between those and the snapshot is fetched before it is shown. */
async function goOnReading(snapshot) {
  held = [];
  hear(await older.joined(snapshot));
  const later = held;
  held = null;
  later.forEach(follow);
}

function hear(event) {
  const before = state.ended;
  fold(state, event);
  if (state.gap) {
    state.gap = false;
    socket.subscribe(sessionId, null); // only a fresh snapshot helps
  }
  if (event.kind === "session.snapshot") known = true;
  if (event.kind === "artifact.added") artifacts.news(event);
  if (event.kind === "turn.queued") waitAWhile();
  if (state.ended !== before) announceEnding(state.ended);
  if (NEWS.test(event.kind)) news = true;
  if (event.kind === "approval.requested") announce(_("A call waits for your approval."));
  if (event.kind === "question.asked") announce(_("A question for you: {question}", event.question));
  if (state.replaced && !scroll.following) paintInPlace();
  else transcript.schedule();
}

function paintInPlace() {
  scroll.keepingPlace(() => transcript.paint());
}

/** Of any chat, told or found out. */
function changed(session) {
  sidebar.changed(session);
  if (notifier.heard(session)) transcript.schedule();
}

let patient = true; // a worker usually comes at once; only a real wait is worth a word
let patienceTimer = null;
function waitAWhile() {
  patient = true;
  clearTimeout(patienceTimer);
  patienceTimer = setTimeout(() => {
    patient = false;
    transcript.schedule();
  }, PATIENT_FOR);
}

function announceEnding(event) {
  if (event.kind === "turn.succeeded") announce(_("Answer finished."));
  if (event.kind === "turn.failed") announce(_("The answer failed."));
  if (event.kind === "turn.cancelled") announce(_("Stopped."));
}

let bannerTimer = null;
let unsent = false; // the composer says that there was no connection
function connection(status) {
  clearTimeout(bannerTimer);
  const banner = byId("banner");
  document.documentElement.dataset.connection = status;
  if (status === "open") {
    show(banner, false);
    if (unsent) composer.problem(""); // it can be sent now
    unsent = false;
    // Whatever was sent into the broken connection either shows up by now or was never accepted.
    setTimeout(() => outbox.giveUp(state).forEach((one) => notSent(one, _("The connection broke. Please send it again."))), 1500);
    return;
  }
  if (status === "full") {
    const again = document.createElement("button");
    again.type = "button";
    again.className = "quiet";
    again.textContent = _("Try again");
    again.addEventListener("click", () => socket.retry());
    banner.replaceChildren(_("Pilothouse is open in too many tabs or apps. Close some, then try again."), " ", again);
    show(banner, true);
    return;
  }
  bannerTimer = setTimeout(() => {
    banner.textContent = _("Connection lost. Reconnecting…");
    show(banner, true);
  }, QUIET_FOR);
}

// --- acts ---

async function send(message) {
  const entry = outbox.add(message, state);
  news = true;
  scroll.toEnd();
  transcript.schedule();
  try {
    await socket.opened();
    if (!sessionId) await startSession();
    const { text, attachments, tier, mode } = message;
    const ack = await command("message.send", { text, attachments, tier, mode });
    outbox.accepted(entry, ack.message_id);
    if (!state.limit) dock.limit.paint(null); // it was reached by an earlier try
    if (frozen !== undefined) return location.assign(`/chat/${sessionId}/`);
    if (ack.ignored_attachments?.length) toast(_("Some attachments could not be used."));
    if (ack.hint) toast(ack.hint);
  } catch (problem) {
    if (problem.code === "disconnected") {
      entry.lost = true; // sent, but was it accepted? The events after the reconnect will tell
      return;
    }
    outbox.remove(entry);
    if (problem.code?.startsWith("limit_")) refusedByLimit(entry, problem);
    else notSent(entry, problem.message);
    unsent = problem.code === "not_connected";
  }
  transcript.schedule();
}

const UNDO = {
  title: _("Undo the last turn?"),
  text: _("It leaves the conversation. What its tools did outside of it (files, messages, purchases) is not undone."),
  yes: _("Undo"),
};

/** A command typed as a message: the server carries it out, and nothing is shown as said. */
async function obey(name, message) {
  if (!sessionId && name === "new") return message.text.trim() === "/new" ? leave() : send({ ...message, text: message.text.trim().slice(4).trim() });
  if (!sessionId) return composer.problem(_("There is no conversation here yet."));
  if (name === "undo" && !(await confirmed(UNDO))) return;
  const { text, tier, mode } = message;
  if (name === "btw") aside.begin(text.trim().slice(4).trim());
  const ack = await attempt("message.send", { text, tier, mode });
  if (!ack && name === "btw") aside.giveUp();
  if (!ack) return composer.giveBack(message);
  if (ack.session_id !== sessionId) return location.assign(`/chat/${ack.session_id}/`);
  if (name !== "btw") toast(ack.message);
  if (ack.text && !byId("text").value) composer.put(ack.text);
}

function refusedByLimit(entry, problem) {
  composer.giveBack(entry);
  dock.limit.paint(problem.fields);
  announce(problem.message);
  transcript.schedule();
}

function notSent(entry, words) {
  composer.giveBack(entry);
  composer.problem(words);
  transcript.schedule();
}

/** A waiting message was taken while somebody changed it: their words are not lost. */
function tooLate(text) {
  composer.giveBack({ text, files: [] });
  toast(_("It was sent before you changed it. Your words are in the box."));
}

async function startSession() {
  const session = await call("POST", "/sessions", {});
  sessionId = session.id;
  app.dataset.session = sessionId;
  history.replaceState(null, "", `/chat/${sessionId}/`);
  composer.setSession(sessionId);
  sidebar.setCurrent(sessionId, session.title);
  await socket.subscribe(sessionId, session.cursor);
}

async function attempt(kind, fields) {
  try {
    return await command(kind, fields);
  } catch (problem) {
    toast(problem.message);
    return null;
  }
}

function stop() {
  if (!state.turn) return;
  if (document.activeElement === byId("stop")) focusComposer();
  byId("stop").disabled = true;
  attempt("turn.stop").finally(() => {
    byId("stop").disabled = false;
  });
}

/** ↑ in an empty box: the last own message is edited, or while a turn runs at least said again. */
function recall() {
  const own = state.order.map((id) => state.rows.get(id)).filter((row) => row.kind === "user");
  if (!own.length) return false;
  if (state.turn) composer.put(own.at(-1).content);
  else versions.edit(own.at(-1));
  return true;
}

/** `through`: the message it ends at; fetched only by those who share. */
async function share(through) {
  const { openSharing } = await import("./sharing.js");
  openSharing(sessionId, through);
}

function leave() {
  location.assign("/chat/");
}

delegate(byId("transcript"), {
  copy: (button) => copyBy(button, state.rows.get(button.closest("[data-row]").dataset.row).content),
  "copy-code": copyCode,
  continue: () => send({ text: "Continue.", files: [], attachments: [], ...composer.choices() }),
  "toggle-steps": (button) => steps.toggle(button.closest("[data-fold]")),
  share: (button) => share(button.closest("[data-row]").dataset.row),
  ...versions.acts,
});
byId("transcript").addEventListener("change", (event) => {
  const choice = event.target.closest("[data-retry-with]");
  if (!choice?.value) return;
  composer.choose(choice.value);
  versions.retry(choice);
  choice.value = "";
});
const tries = {
  try: (button) => {
    focusComposer(); // they go away while it answers
    composer.say(button.dataset.text);
  },
};
if (byId("tries")) delegate(byId("tries"), tries);
byId("share").addEventListener("click", () => share(null));
delegate(byId("empty"), {
  example: (link, event) => {
    event.preventDefault(); // before this script ran, it is a link to the same page with the text in place
    composer.put(link.dataset.text);
  },
});
byId("older").addEventListener("click", (event) => {
  event.preventDefault();
  older.loadNow();
});

// --- the frame around the transcript ---

const GOAL_STATES = { active: _("Working towards"), paused: _("Goal, paused"), achieved: _("Goal, reached"), exhausted: _("Goal, given up for now") };
const THROTTLED = {
  user: _("Waiting for another of your chats to finish…"),
  address: _("Waiting: many chats are running from your network…"),
};
const PHASES = { model: _("Thinking…"), tool: _("Working…"), retry: _("Trying again…"), question: _("Waiting for your answer…"), compaction: _("Summarising…") };

function working() {
  const { turn } = state;
  if (!turn || turn.status === "waiting" || state.questions.length) return "";
  const last = state.rows.get(state.order.at(-1));
  if (turn.status === "queued" && turn.throttle) return THROTTLED[turn.throttle];
  if (turn.activity?.kind === "recovering") return _("The worker was lost. Picking up where it stopped…");
  if (turn.activity?.kind === "retrying") return _("{label} ({attempt} of {attempts})…", { ...turn.activity, label: translated(turn.activity.label) || _("Trying again") });
  if (last?.streaming && last.content) return "";
  for (const call of state.calls.values()) if (call.state === "proposed") return _("Preparing {tool}…", { tool: call.tool.replaceAll("_", " ") });
  if (last?.kind === "tool_call") return "";
  return turn.status === "queued" && !patient ? _("Waiting for a free worker…") : (PHASES[turn.phase] ?? _("Thinking…"));
}

/** How full the model's window is, and how fast it writes; the speed only while it does. */
function paintMeter() {
  const meter = byId("meter");
  const percent = state.meter?.context_used_percent ?? state.context.used_percent;
  const guessed = state.meter == null && state.context.estimated;
  const speed = state.turn?.status === "running" && state.meter?.turn_id === state.turn.id ? state.meter.tokens_per_second : null;
  show(meter, percent != null || Boolean(speed));
  show(meter.querySelector("svg"), percent != null);
  slot(meter, "ring").style.strokeDasharray = `${Math.min(percent ?? 0, 100)} 100`;
  const words = guessed ? _("about {percent} % of context", { percent: Math.round(percent) }) : _("{percent} % of context", { percent: Math.round(percent) });
  fill(meter, "context", percent == null ? "" : words);
  fill(meter, "speed", speed ? _("{number} tokens/s", { number: Math.round(speed) }) : "");
}

/** What this chat works towards by itself, and how far that is. */
function paintGoal() {
  const goal = state.goal;
  if (goal) fill(byId("goal"), "text", [`${GOAL_STATES[goal.state]}: ${goal.text}`, goal.reason].filter(Boolean).join(" — "));
  show(byId("goal"), Boolean(goal));
}

function paintFrame() {
  const running = Boolean(state.turn);
  paintMeter();
  paintGoal();
  composer.setRunning(running);
  app.toggleAttribute("data-running", running);
  const words = working();
  show(byId("working"), Boolean(words));
  if (words) fill(byId("working"), "text", words);
  show(byId("empty"), known && state.order.length === 0 && outbox.empty);
  show(byId("tries"), !running && state.order.length > 0 && !state.questions.length && !state.queue.length);
  show(byId("older"), state.hasOlder);
  show(byId("share"), Boolean(sessionId) && state.order.length > 0);
  const title = state.title || _("New chat");
  if (byId("title").textContent !== title) byId("title").textContent = title;
  document.title = `${notifier.mark}${running ? "● " : ""}${title} · Pilothouse`;
  if (state.deleted) leave();
}

startTheme();
delegate(document.body, { search: () => palette.open(), "this-chat": () => thisChat.open() });
if (sessionId && frozen === undefined) socket.subscribe(sessionId, known ? app.dataset.cursor : null);
socket.subscribeSidebar(() => sidebar.catchUp(changed));
socket.connect();
transcript.paint();
typeset(byId("transcript")); // what the server has painted
for (const row of byId("transcript").querySelectorAll(".row:not([data-streaming])")) highlight(row);
dock.limit.look(state).catch(() => {});
steps.reveal(transcript.elements.get(at));
if (at) scroll.toRow(transcript.elements.get(at));
else scroll.toEnd();
