// The chat page: connects the socket, the session's state and the parts of the page.

import { callApi } from "../lib/api.js";
import { copyCodeBlock, copyWithFeedback } from "../lib/clipboard.js";
import { confirmAction } from "../lib/confirm_dialog.js";
import { byId, delegateClicks, fillSlot, findSlot, setVisible, targetOf } from "../lib/dom.js";
import { typesetFormulas } from "../lib/formulas.js";
import { highlightCode } from "../lib/highlight.js";
import { _, errorMessage } from "../lib/i18n.js";
import { makePortable } from "../lib/markdown.js";
import { startTheme } from "../lib/theme.js";
import { announce, showToast } from "../lib/toasts.js";
import { ApprovalCards } from "./approvals.js";
import { ArtifactCards } from "./artifacts.js";
import { focusComposer } from "./cards.js";
import { Composer } from "./composer.js";
import { createState, isContiguous, reduceEvent } from "./event_reducer.js";
import { activityLabel, goalLabel } from "./labels.js";
import { MessageHistory } from "./message_history.js";
import { Notifications } from "./notifications.js";
import { Outbox } from "./outbox.js";
import { QuestionCards } from "./questions.js";
import { MessageQueue } from "./queue.js";
import { SearchPalette } from "./search_palette.js";
import { SessionSettings } from "./session_settings.js";
import { SideQuestion } from "./side_question.js";
import { Sidebar } from "./sidebar.js";
import { Socket } from "./socket.js";
import { StepGroups } from "./step_groups.js";
import { TodoList } from "./todos.js";
import { Transcript } from "./transcript.js";
import { TranscriptScroll } from "./transcript_scroll.js";
import { UsageLimit } from "./usage_limit.js";
import { MessageVersions } from "./versions.js";

const BANNER_AFTER_MS = 1500; // a connection back within this time was never worth a word
const LOST_AFTER_MS = 1500; // after a reconnect, for the events that show what was accepted
const PATIENT_FOR_MS = 2500; // a worker usually comes at once; only a real wait is worth a word
// Events that add something to read.
const READABLE = /^(message|text|reasoning|tool|notice|context|session\.snapshot)\b/;
const UNDO = {
  title: _("Undo the last exchange?"),
  text: _("This removes the last exchange. Files, messages or purchases made by tools are not undone."),
  yes: _("Undo"),
};

class ChatPage {
  constructor() {
    this.app = byId("app");
    this.list = byId("transcript");
    this.sessionId = this.app.dataset.session || null;
    this.targetId = this.app.dataset.at; // a message to scroll to
    this.isFrozen = this.app.dataset.frozen !== undefined; // the page ends before the newest message
    this.hasNews = false; // something to read has come since the last paint
    this.heldEvents = null; // what came behind a snapshot while pages before it are fetched
    this.isPatient = true;
    this.isUnsent = false; // the composer says that there was no connection
    this.patienceTimer = null;
    this.bannerTimer = null;
    this.state = createState();
    this.#readSnapshot();
    this.#createParts();
    this.transcript.afterPaint = () => this.#paintParts();
    this.#listen();
  }

  #readSnapshot() {
    const snapshot = byId("snapshot");
    if (snapshot) reduceEvent(this.state, JSON.parse(snapshot.textContent));
    this.state.replaced = false; // the server has painted it already
    // An older page, painted for readers without a script, has no state.
    this.isKnown = Boolean(snapshot) || !this.sessionId;
  }

  #createParts() {
    const { list, state } = this;
    const sessionId = () => this.sessionId;
    const sendCommand = (kind, fields) => this.#sendCommand(kind, fields);
    this.transcript = new Transcript(list, state);
    this.history = new MessageHistory(state, { sessionId, onLoaded: () => this.#paintInPlace() });
    this.scroll = new TranscriptScroll(byId("scroll"), byId("pill"), {
      loadOlder: () => this.history.loadOlder(),
    });
    this.sidebar = new Sidebar({ current: this.sessionId, onGone: () => this.#leave() });
    this.socket = new Socket({
      onEvent: (event) => this.#handleEvent(event),
      onStatus: (status) => this.#handleStatus(status),
    });
    this.artifacts = new ArtifactCards(state, this.transcript, { sessionId });
    this.composer = new Composer({
      sessionId: this.sessionId,
      onSend: (message) => this.#send(message),
      onCommand: (name, message) => this.#runSlashCommand(name, message),
      onStop: () => this.#stop(),
      onRecall: () => this.#recallLastMessage(),
    });
    this.usageLimit = new UsageLimit();
    this.todos = new TodoList();
    this.queue = new MessageQueue({
      send: (kind, fields) => this.#trySending(kind, fields),
      onTooLate: (text) => this.#returnLateEdit(text),
    });
    this.questions = new QuestionCards({
      answer: (fields) => this.socket.sendCommand("question.answer", fields),
    });
    this.approvals = new ApprovalCards({
      decide: (fields) => this.socket.sendCommand("approval.decide", fields),
      allow: (fields) => callApi("PATCH", `/sessions/${this.sessionId}`, { auto_approve: fields }),
    });
    this.outbox = new Outbox(list);
    this.palette = new SearchPalette();
    this.notifications = new Notifications({ onSeen: () => this.transcript.schedulePaint() });
    this.stepGroups = new StepGroups(list, state, this.transcript, {
      isInView: (item) => this.scroll.isInView(item),
    });
    this.settings = new SessionSettings({ sessionId, createSession: () => this.#createSession() });
    this.sideQuestion = new SideQuestion({ stop: () => this.#trySending("side.stop") });
    this.versions = new MessageVersions(list, state, {
      sendCommand,
      modelChoice: () => this.composer.modelChoice(),
      onSent: () => this.scroll.scrollToEnd(),
    });
  }

  #listen() {
    delegateClicks(this.list, {
      copy: (button) => copyWithFeedback(button, makePortable(this.state.rows.get(rowIdOf(button)).content)),
      "copy-code": copyCodeBlock,
      footnote: showFootnote,
      continue: () => this.composer.sendText("Continue."),
      "toggle-steps": (button) => this.stepGroups.toggle(button.closest("[data-fold]")),
      share: (button) => this.#share(rowIdOf(button)),
      ...this.versions.actions,
    });
    this.list.addEventListener("change", (event) => {
      const choice = targetOf(event).closest("[data-retry-with]");
      if (!choice?.value) return;
      this.composer.chooseTier(choice.value);
      this.versions.retry(choice);
      choice.value = "";
    });
    this.list.addEventListener("click", (event) => this.#openPicture(event));
    if (byId("tries")) delegateClicks(byId("tries"), { try: (button) => this.#trySuggestion(button) });
    byId("share").addEventListener("click", () => this.#share(null));
    delegateClicks(byId("empty"), {
      example: (link, event) => {
        event.preventDefault(); // before this script ran, it is a link to the same page with the text in place
        this.composer.setText(link.dataset.text);
      },
    });
    byId("older").addEventListener("click", (event) => {
      event.preventDefault();
      this.history.loadOlderNow();
    });
    delegateClicks(document.body, {
      search: () => this.palette.open(),
      "this-chat": () => this.settings.open(),
    });
  }

  /** Connect, and bring what the server has painted to life. */
  start() {
    startTheme();
    if (this.sessionId && !this.isFrozen) {
      this.socket.subscribe(this.sessionId, this.isKnown ? this.app.dataset.cursor : null);
    }
    this.socket.subscribeSidebar(() =>
      this.sidebar.loadMissedChanges((session) => this.#updateSession(session)),
    );
    this.socket.connect();
    this.transcript.paint();
    typesetFormulas(this.list);
    for (const row of this.list.querySelectorAll(".row:not([data-streaming])")) highlightCode(row);
    this.usageLimit.checkNotices(this.state).catch(() => {});
    const target = this.transcript.elements.get(this.targetId);
    this.stepGroups.reveal(target);
    if (this.targetId) this.scroll.scrollToRow(target);
    else this.scroll.scrollToEnd();
  }

  // --- events from the socket ---

  #handleEvent(event) {
    if (event.kind === "session.changed") this.#updateSession(event);
    if (event.kind === "title.changed") this.sidebar.updateSession(event);
    if (event.kind === "export.finished") return this.sidebar.exports.showFinished(event);
    // Of whichever chat: it may be open here.
    if (event.kind === "artifact.removed") this.artifacts.handleRemoved(event);
    if (event.kind === "error") return showToast(errorMessage(event));
    if (event.kind.startsWith("side.")) return this.sideQuestion.handleEvent(event);
    if (event.session_id === this.sessionId && !this.isFrozen) this.#followSession(event);
  }

  /** Of any chat, from an event or from the list of sessions. */
  #updateSession(session) {
    this.sidebar.updateSession(session);
    if (this.notifications.handleChange(session)) this.transcript.schedulePaint();
  }

  #followSession(event) {
    const leavesGap =
      event.kind === "session.snapshot" && !this.scroll.isFollowing && !isContiguous(this.state, event);
    if (this.heldEvents) this.heldEvents.push(event);
    else if (leavesGap) this.#joinSnapshot(event);
    else this.#applyEvent(event);
  }

  /**
   * Fetch what lies between the older pages somebody reads and a snapshot before it is shown, so that they
   * stay there.
   */
  async #joinSnapshot(snapshot) {
    this.heldEvents = [];
    this.#applyEvent(await this.history.joinSnapshot(snapshot));
    const events = this.heldEvents;
    this.heldEvents = null;
    for (const event of events) this.#followSession(event);
  }

  #applyEvent(event) {
    const { state } = this;
    const endedBefore = state.ended;
    reduceEvent(state, event);
    if (state.gap) {
      state.gap = false;
      this.socket.subscribe(this.sessionId, null); // only a fresh snapshot helps
    }
    if (event.kind === "session.snapshot") this.isKnown = true;
    if (event.kind === "artifact.added") this.artifacts.handleAdded(event);
    if (event.kind === "turn.queued") this.#startPatience();
    if (state.ended !== endedBefore) announceEnding(state.ended);
    if (READABLE.test(event.kind)) this.hasNews = true;
    if (event.kind === "approval.requested") announce(_("Waiting for your approval."));
    if (event.kind === "question.asked") announce(_("Question for you: {question}", event.question));
    if (state.replaced && !this.scroll.isFollowing) this.#paintInPlace();
    else this.transcript.schedulePaint();
  }

  #startPatience() {
    this.isPatient = true;
    clearTimeout(this.patienceTimer);
    this.patienceTimer = setTimeout(() => {
      this.isPatient = false;
      this.transcript.schedulePaint();
    }, PATIENT_FOR_MS);
  }

  // --- the connection ---

  #handleStatus(status) {
    clearTimeout(this.bannerTimer);
    document.documentElement.dataset.connection = status;
    if (status === "open") this.#handleConnected();
    else if (status === "full") this.#showTooManySockets();
    else
      this.bannerTimer = setTimeout(
        () => this.#showBanner(_("Connection lost. Reconnecting…")),
        BANNER_AFTER_MS,
      );
  }

  #handleConnected() {
    setVisible(byId("banner"), false);
    if (this.isUnsent) this.composer.showProblem(""); // it can be sent now
    this.isUnsent = false;
    // Whatever was sent into the broken connection either shows up by now or was never accepted.
    setTimeout(() => {
      for (const entry of this.outbox.takeLost(this.state)) {
        this.#returnMessage(entry, _("The connection was lost. Send it again."));
      }
    }, LOST_AFTER_MS);
  }

  #showTooManySockets() {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = _("Try again");
    button.addEventListener("click", () => this.socket.retry());
    this.#showBanner(
      _("Pilothouse is open in too many tabs or apps. Close some, then try again."),
      " ",
      button,
    );
  }

  #showBanner(...content) {
    byId("banner").replaceChildren(...content);
    setVisible(byId("banner"), true);
  }

  // --- actions of the person ---

  async #send(message) {
    const entry = this.outbox.add(message, this.state);
    this.hasNews = true;
    this.scroll.scrollToEnd();
    this.transcript.schedulePaint();
    const isFirst = !this.sessionId;
    try {
      await this.socket.waitUntilOpen();
      if (!this.sessionId) await this.#createSession();
      const { text, attachments, tier, mode } = message;
      const ack = await this.#sendCommand("message.send", { text, attachments, tier, mode });
      this.outbox.markAccepted(entry, ack.message_id);
      if (!this.state.limit) this.usageLimit.paint(null); // it was reached by an earlier try
      if (this.isFrozen) return location.assign(`/chat/${this.sessionId}/`);
      if (ack.ignored_attachments?.length) showToast(_("Some attachments couldn't be used."));
      if (ack.hint) showToast(ack.hint);
    } catch (problem) {
      if (problem.code === "disconnected") {
        entry.lost = true; // sent, but was it accepted? The events after the reconnect will tell
        return;
      }
      this.outbox.remove(entry);
      if (isFirst && this.sessionId) this.#discardSession();
      if (problem.code?.startsWith("limit_")) this.#returnLimited(entry, problem);
      else this.#returnMessage(entry, problem.message);
      this.isUnsent = problem.code === "not_connected";
    }
    this.transcript.schedulePaint();
  }

  /** Send a slash command, which the server carries out and no message shows. */
  async #runSlashCommand(name, message) {
    const rest = message.text
      .trim()
      .slice(name.length + 1)
      .trim();
    if (!this.sessionId && name === "new")
      return rest ? this.#send({ ...message, text: rest }) : this.#leave();
    if (!this.sessionId) return this.composer.showProblem(_("This chat is empty."));
    if (name === "undo" && !(await confirmAction(UNDO))) return;
    const { text, tier, mode } = message;
    if (name === "btw") this.sideQuestion.start(rest);
    const ack = await this.#trySending("message.send", { text, tier, mode });
    if (!ack && name === "btw") this.sideQuestion.hide();
    if (!ack) return this.composer.restoreMessage(message);
    if (ack.session_id !== this.sessionId) return location.assign(`/chat/${ack.session_id}/`);
    if (name !== "btw") showToast(ack.message);
    if (ack.text && !byId("text").value) this.composer.setText(ack.text);
  }

  #returnLimited(entry, problem) {
    this.composer.restoreMessage(entry);
    this.usageLimit.paint(problem.fields);
    announce(problem.message);
    this.transcript.schedulePaint();
  }

  #returnMessage(entry, reason) {
    this.composer.restoreMessage(entry);
    this.composer.showProblem(reason);
    this.transcript.schedulePaint();
  }

  /** A queued message was consumed while somebody edited it: give their text back. */
  #returnLateEdit(text) {
    this.composer.restoreMessage({ text, files: [] });
    showToast(_("Already sent. Your edit is back in the box."));
  }

  async #createSession() {
    const session = await callApi("POST", "/sessions", {});
    this.sessionId = session.id;
    this.app.dataset.session = session.id;
    history.replaceState(null, "", `/chat/${session.id}/`);
    this.composer.setSession(session.id);
    this.sidebar.setCurrent(session.id, session.title);
    await this.socket.subscribe(session.id, session.cursor);
  }

  /** Its first message was refused: this is a new chat again, and no empty one stays in the list. */
  #discardSession() {
    const id = this.sessionId;
    this.socket.unsubscribe(id);
    this.sessionId = null;
    this.app.dataset.session = "";
    history.replaceState(null, "", "/chat/");
    this.composer.setSession(null);
    this.sidebar.discardSession(id);
    callApi("DELETE", `/sessions/${id}`).catch(() => {}); // it stays in the list, and can be deleted there
  }

  #sendCommand(kind, fields) {
    return this.socket.sendCommand(kind, { session_id: this.sessionId, ...fields });
  }

  /** Send a command and show why it failed; the result is its ack, or null. */
  async #trySending(kind, fields = {}) {
    try {
      return await this.#sendCommand(kind, fields);
    } catch (problem) {
      showToast(problem.message);
      return null;
    }
  }

  #stop() {
    if (!this.state.turn) return;
    const button = byId("stop");
    if (document.activeElement === button) focusComposer();
    button.disabled = true;
    this.#trySending("turn.stop").finally(() => {
      button.disabled = false;
    });
  }

  /** Edit the last own message, or while a turn runs copy it into the box; true if there is one. */
  #recallLastMessage() {
    const last = this.state.order.map((id) => this.state.rows.get(id)).findLast((row) => row.kind === "user");
    if (!last) return false;
    if (this.state.turn) this.composer.setText(last.content);
    else this.versions.edit(last);
    return true;
  }

  #trySuggestion(button) {
    focusComposer(); // the suggestions go away while it answers
    this.composer.sendText(button.dataset.text);
  }

  /** Show an attached picture over the chat; with a modifier key the link opens a tab as any other. */
  async #openPicture(event) {
    const link = targetOf(event).closest(".row-files a.picture");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { openPicture } = await import("./lightbox.js");
    openPicture(link);
  }

  /** `through`: the last message to share; the dialog is fetched only by those who share. */
  async #share(through) {
    const { openShareDialog } = await import("./share_dialog.js");
    openShareDialog(this.sessionId, through);
  }

  #leave() {
    location.assign("/chat/");
  }

  // --- painting ---

  /** Paint the transcript without moving what somebody reads. */
  #paintInPlace() {
    this.scroll.keepPosition(() => this.transcript.paint());
  }

  #paintParts() {
    const { state } = this;
    this.stepGroups.paint();
    this.outbox.paint(state);
    this.todos.paint(state);
    this.usageLimit.paintState(state);
    this.questions.paint(state);
    this.queue.paint(state, this.outbox.queuedEntries(state));
    this.approvals.paint(state);
    this.artifacts.paint();
    this.#paintFrame();
    this.scroll.updateAfterPaint(this.hasNews);
    this.hasNews = false;
  }

  #paintFrame() {
    const { state } = this;
    const isRunning = Boolean(state.turn);
    const hasRows = state.order.length > 0;
    this.#paintMeter();
    this.#paintGoal();
    this.composer.setRunning(isRunning);
    this.app.toggleAttribute("data-running", isRunning);
    this.#paintActivity();
    setVisible(byId("empty"), this.isKnown && !hasRows && this.outbox.isEmpty);
    setVisible(byId("tries"), !isRunning && hasRows && !state.questions.length && !state.queue.length);
    setVisible(byId("older"), state.hasOlder);
    setVisible(byId("share"), Boolean(this.sessionId) && hasRows);
    this.#paintTitle(isRunning);
    if (state.deleted) this.#leave();
  }

  #paintActivity() {
    const label = activityLabel(this.state, this.isPatient);
    setVisible(byId("working"), Boolean(label));
    if (label) fillSlot(byId("working"), "text", label);
  }

  #paintTitle(isRunning) {
    const title = this.state.title || _("New chat");
    if (byId("title").textContent !== title) byId("title").textContent = title;
    document.title = `${this.notifications.titlePrefix}${isRunning ? "● " : ""}${title} · Pilothouse`;
  }

  /** Show how full the context window is, and how fast the model writes; the speed only while it does. */
  #paintMeter() {
    const { meter, context, turn } = this.state;
    const box = byId("meter");
    const percent = meter?.context_used_percent ?? context.used_percent;
    const isEstimate = meter == null && context.estimated;
    const speed = turn?.status === "running" && meter?.turn_id === turn.id ? meter.tokens_per_second : null;
    setVisible(box, percent != null || Boolean(speed));
    setVisible(box.querySelector("svg"), percent != null);
    findSlot(box, "ring").style.strokeDasharray = `${Math.min(percent ?? 0, 100)} 100`;
    const rounded = { percent: Math.round(percent ?? 0) };
    const label = isEstimate
      ? _("about {percent}% of context", rounded)
      : _("{percent}% of context", rounded);
    fillSlot(box, "context", percent == null ? "" : label);
    fillSlot(box, "speed", speed ? _("{number} tokens/s", { number: Math.round(speed) }) : "");
  }

  #paintGoal() {
    const { goal } = this.state;
    if (goal) fillSlot(byId("goal"), "text", goalLabel(goal));
    setVisible(byId("goal"), Boolean(goal));
  }
}

const rowIdOf = (button) => button.closest("[data-row]").dataset.row;

/** Scroll to the text of a footnote, in the same answer. */
function showFootnote(mark) {
  const notes = [...mark.closest(".prose").querySelectorAll(".footnote-text")];
  const note = notes.find((one) => one.querySelector("sup").textContent === mark.textContent);
  if (!note) return;
  note.scrollIntoView({ block: "center" });
  note.classList.remove("sought");
  requestAnimationFrame(() => note.classList.add("sought"));
}

function announceEnding(event) {
  if (event.kind === "turn.succeeded") announce(_("Answer finished."));
  if (event.kind === "turn.failed") announce(_("The answer failed."));
  if (event.kind === "turn.cancelled") announce(_("Stopped."));
}

new ChatPage().start();
