// The one WebSocket of a page: commands with answers, subscriptions that survive a reconnect (E2, T8.2).

import { _, refusal } from "./words.js";

const FIRST_WAIT = 400; // doubles up to LONGEST_WAIT, with full jitter, so that a restart brings no stampede
const LONGEST_WAIT = 15_000;
const PING_EVERY = 25_000;
const PONG_WITHIN = 10_000;
const ANSWER_WITHIN = 20_000;
const STRANGER = 4401; // not signed in, or no longer by this cookie
const TOO_MANY = 4429; // sockets of this account or address
const LEAST_WAIT = { 4008: 5_000, 4009: 1_000 }; // sent too fast, read too slowly: coming back at once would end the same way
const AWAY = ["unavailable", "internal_error"]; // the server is there, what it needs is not: no reason to follow nothing
const RELOAD_ONCE_IN = 60_000; // a page that is refused again right after a reload must not spin

export class CommandFailed extends Error {
  constructor(code, message, fields = {}) {
    super(message);
    this.code = code;
    this.fields = fields;
  }
}

export class Socket {
  /** `onEvent(event)` for every event, `onStatus("open" | "lost" | "full")` when the connection comes and goes.
   * After "full" (too many connections) nothing is tried again until `retry` is called or the page is looked at. */
  constructor({ onEvent, onStatus }) {
    this.onEvent = onEvent;
    this.onStatus = onStatus;
    this.cursors = new Map(); // session id → the last cursor read
    this.onFollowed = null;
    this.waiting = new Map(); // ref → {resolve, reject, timer}
    this.nextRef = 1;
    this.failures = 0;
    this.refused = false; // as a stranger, since the last answer
    this.socket = null;
    addEventListener("online", () => this.#retryNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#retryNow());
  }

  connect() {
    clearTimeout(this.retryTimer);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/`);
    this.socket = socket;
    socket.onopen = () => this.#opened();
    socket.onmessage = (frame) => this.#received(frame.data);
    socket.onclose = (close) => socket === this.socket && this.#closed(close.code);
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Waits for a connection that is just being made; whether there is one then. */
  async opened(milliseconds = 4000) {
    const until = Date.now() + milliseconds;
    while (!this.open && Date.now() < until) await new Promise((resume) => setTimeout(resume, 50));
    return this.open;
  }

  /** Send a command; the promise is its `ack`, or fails with CommandFailed. */
  command(kind, fields = {}) {
    if (!this.open) return Promise.reject(new CommandFailed("not_connected", _("Not connected right now. Your text is kept.")));
    const ref = String(this.nextRef++);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(ref);
        reject(new CommandFailed("disconnected", _("No answer from the server.")));
        this.socket.close();
      }, ANSWER_WITHIN);
      this.waiting.set(ref, { resolve, reject, timer });
      this.socket.send(JSON.stringify({ kind, ref, ...fields }));
    });
  }

  subscribe(sessionId, cursor) {
    this.cursors.set(sessionId, cursor || null);
    return this.open ? this.#subscribe(sessionId) : Promise.resolve();
  }

  unsubscribe(sessionId) {
    this.cursors.delete(sessionId);
    if (this.open) this.command("session.unsubscribe", { session_id: sessionId }).catch(() => {});
  }

  /** `onFollowed` is called whenever the list is followed from now on: what happened before is not told again. */
  subscribeSidebar(onFollowed) {
    this.onFollowed = onFollowed;
    if (this.open) this.#followSidebar();
  }

  #followSidebar() {
    this.command("sidebar.subscribe").then(this.onFollowed).catch(() => {});
  }

  #subscribe(sessionId) {
    const cursor = this.cursors.get(sessionId);
    return this.command("session.subscribe", { session_id: sessionId, ...(cursor ? { cursor } : {}) }).catch(
      (problem) => {
        if (problem.code === "disconnected" || problem.code === "not_connected") return;
        if (problem.code === "invalid_cursor") return this.subscribe(sessionId, null);
        if (AWAY.includes(problem.code)) return this.socket.close(); // again, from the same cursor
        this.cursors.delete(sessionId);
        throw problem;
      },
    );
  }

  async #opened() {
    const { socket } = this;
    this.pingTimer = setInterval(() => this.#ping(), PING_EVERY);
    if (this.onFollowed) this.#followSidebar();
    // A socket that is refused opens first, so that its code can be read: only an answer says that it stays.
    const greeting = this.command("ping");
    await Promise.allSettled([greeting, ...[...this.cursors.keys()].map((sessionId) => this.#subscribe(sessionId))]);
    if (!this.open || socket !== this.socket) return; // refused for now, or lost again: no better than before
    this.failures = 0;
    this.onStatus("open");
  }

  #received(text) {
    clearTimeout(this.pongTimer);
    const said = JSON.parse(text);
    for (const event of Array.isArray(said) ? said : [said]) this.#take(event);
  }

  #take(event) {
    if (event.kind === "ack" || (event.kind === "error" && event.ref)) return this.#answer(event);
    // The sidebar's copy of `session.changed` may run ahead of the session's own log.
    if (event.cursor && this.cursors.has(event.session_id) && event.kind !== "session.changed") {
      this.cursors.set(event.session_id, event.cursor);
    }
    this.onEvent(event);
  }

  #answer(event) {
    const waiter = this.waiting.get(event.ref);
    if (!waiter) return;
    this.waiting.delete(event.ref);
    clearTimeout(waiter.timer);
    this.refused = false;
    if (event.kind === "ack") waiter.resolve(event);
    else waiter.reject(new CommandFailed(event.code, refusal(event), event));
  }

  #ping() {
    this.command("ping").catch(() => {});
    this.pongTimer = setTimeout(() => this.socket.close(), PONG_WITHIN);
  }

  #closed(code) {
    clearInterval(this.pingTimer);
    clearTimeout(this.pongTimer);
    for (const { reject, timer } of this.waiting.values()) {
      clearTimeout(timer);
      reject(new CommandFailed("disconnected", _("The connection was lost.")));
    }
    this.waiting.clear();
    // After a new password this browser has a new cookie: only a second refusal means that it is signed out.
    if (code === STRANGER && this.refused && this.#firstTime()) return location.reload(); // leads to the login page
    if (code === STRANGER) this.refused = true;
    if (code === TOO_MANY) return this.onStatus("full");
    this.onStatus("lost");
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.failures++);
    this.retryTimer = setTimeout(() => this.connect(), Math.random() * wait + (LEAST_WAIT[code] ?? 50));
  }

  /** Try again now, after "full". */
  retry() {
    this.#retryNow();
  }

  #firstTime() {
    const last = Number(sessionStorage.getItem("refused") ?? 0);
    sessionStorage.setItem("refused", String(Date.now()));
    return Date.now() - last > RELOAD_ONCE_IN;
  }

  #retryNow() {
    if (this.socket?.readyState !== WebSocket.CLOSED) return;
    this.failures = 0;
    this.connect();
  }
}
