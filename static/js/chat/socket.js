// The page's WebSocket: commands with acknowledgements, and subscriptions that survive a reconnect.

import { _, errorMessage } from "../lib/i18n.js";

const FIRST_WAIT_MS = 400; // doubles up to LONGEST_WAIT, with full jitter, so that a restart brings no stampede
const MAX_WAIT_MS = 15_000;
const PING_EVERY_MS = 25_000;
const PONG_TIMEOUT_MS = 10_000;
const ANSWER_TIMEOUT_MS = 20_000;
const NOT_SIGNED_IN = 4401; // not signed in, or no longer by this cookie
const TOO_MANY_SOCKETS = 4429; // sockets of this account or address
// Sent too fast, read too slowly: coming back at once would end the same way.
const MIN_WAIT_MS = { 4008: 5_000, 4009: 1_000 };
// The server is there, what it needs is not: no reason to follow nothing.
const UNAVAILABLE_CODES = ["unavailable", "internal_error"];
const RELOAD_INTERVAL_MS = 60_000; // a page that is refused again right after a reload must not spin

export class CommandError extends Error {
  constructor(code, message, fields = {}) {
    super(message);
    this.code = code;
    this.fields = fields;
  }
}

export class Socket {
  /**
   * After the status "full" (too many connections) nothing is tried until `retry` is called or somebody
   * looks at the page.
   * @param {object} options
   * @param {(event: SessionEvent) => void} options.onEvent
   * @param {(status: "open" | "lost" | "full") => void} options.onStatus
   */
  constructor({ onEvent, onStatus }) {
    this.onEvent = onEvent;
    this.onStatus = onStatus;
    this.cursors = new Map(); // session id → the last cursor read
    this.onSidebarSubscribed = null;
    this.waiting = new Map(); // ref → {resolve, reject, timer}
    this.nextRef = 1;
    this.failures = 0;
    this.wasRefused = false; // as not signed in, since the last answer
    this.socket = null;
    addEventListener("online", () => this.#retryNow());
    document.addEventListener(
      "visibilitychange",
      () => document.visibilityState === "visible" && this.#retryNow(),
    );
  }

  connect() {
    clearTimeout(this.retryTimer);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/`);
    this.socket = socket;
    socket.onopen = () => this.#onOpen();
    socket.onmessage = (frame) => this.#onFrame(frame.data);
    socket.onclose = (close) => socket === this.socket && this.#onClose(close.code);
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Wait for a connection that is being made; true if there is one then. */
  async waitUntilOpen(milliseconds = 4000) {
    const until = Date.now() + milliseconds;
    while (!this.isOpen && Date.now() < until) await new Promise((resume) => setTimeout(resume, 50));
    return this.isOpen;
  }

  /**
   * Send a command; the promise is its `ack`, or fails with a CommandError.
   * @param {string} kind
   * @param {object} [fields]
   * @returns {Promise<any>}
   */
  sendCommand(kind, fields = {}) {
    if (!this.isOpen)
      return Promise.reject(new CommandError("not_connected", _("You're offline. Your text is kept.")));
    const ref = String(this.nextRef++);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(ref);
        reject(new CommandError("disconnected", _("The server isn't responding.")));
        this.socket.close();
      }, ANSWER_TIMEOUT_MS);
      this.waiting.set(ref, { resolve, reject, timer });
      this.socket.send(JSON.stringify({ kind, ref, ...fields }));
    });
  }

  /**
   * @param {string} sessionId
   * @param {string | null} cursor where to resume; null for a fresh snapshot
   */
  subscribe(sessionId, cursor) {
    this.cursors.set(sessionId, cursor || null);
    return this.isOpen ? this.#subscribe(sessionId) : Promise.resolve();
  }

  unsubscribe(sessionId) {
    this.cursors.delete(sessionId);
    if (this.isOpen) this.sendCommand("session.unsubscribe", { session_id: sessionId }).catch(() => {});
  }

  /**
   * Subscribe to the list of sessions. The callback runs after each (re)connect: events before it are not
   * sent again.
   * @param {() => unknown} onSidebarSubscribed
   */
  subscribeSidebar(onSidebarSubscribed) {
    this.onSidebarSubscribed = onSidebarSubscribed;
    if (this.isOpen) this.#subscribeSidebar();
  }

  #subscribeSidebar() {
    this.sendCommand("sidebar.subscribe")
      .then(this.onSidebarSubscribed)
      .catch(() => {});
  }

  #subscribe(sessionId) {
    const cursor = this.cursors.get(sessionId);
    return this.sendCommand("session.subscribe", {
      session_id: sessionId,
      ...(cursor ? { cursor } : {}),
    }).catch((problem) => {
      if (problem.code === "disconnected" || problem.code === "not_connected") return;
      if (problem.code === "invalid_cursor") return this.subscribe(sessionId, null);
      if (UNAVAILABLE_CODES.includes(problem.code)) return this.socket.close(); // again, from the same cursor
      this.cursors.delete(sessionId);
      throw problem;
    });
  }

  async #onOpen() {
    const { socket } = this;
    this.pingTimer = setInterval(() => this.#ping(), PING_EVERY_MS);
    if (this.onSidebarSubscribed) this.#subscribeSidebar();
    // A socket that is refused opens first, so that its code can be read: only an answer says that it stays.
    const greeting = this.sendCommand("ping");
    await Promise.allSettled([
      greeting,
      ...[...this.cursors.keys()].map((sessionId) => this.#subscribe(sessionId)),
    ]);
    if (!this.isOpen || socket !== this.socket) return; // refused for now, or lost again: no better than before
    this.failures = 0;
    this.onStatus("open");
  }

  #onFrame(text) {
    clearTimeout(this.pongTimer);
    const said = JSON.parse(text);
    for (const event of Array.isArray(said) ? said : [said]) this.#handleEvent(event);
  }

  #handleEvent(event) {
    if (event.kind === "ack" || (event.kind === "error" && event.ref)) return this.#resolveCommand(event);
    // The sidebar's copy of `session.changed` may run ahead of the session's own log.
    if (event.cursor && this.cursors.has(event.session_id) && event.kind !== "session.changed") {
      this.cursors.set(event.session_id, event.cursor);
    }
    this.onEvent(event);
  }

  #resolveCommand(event) {
    const waiter = this.waiting.get(event.ref);
    if (!waiter) return;
    this.waiting.delete(event.ref);
    clearTimeout(waiter.timer);
    this.wasRefused = false;
    if (event.kind === "ack") waiter.resolve(event);
    else waiter.reject(new CommandError(event.code, errorMessage(event), event));
  }

  #ping() {
    this.sendCommand("ping").catch(() => {});
    this.pongTimer = setTimeout(() => this.socket.close(), PONG_TIMEOUT_MS);
  }

  #onClose(code) {
    clearInterval(this.pingTimer);
    clearTimeout(this.pongTimer);
    for (const { reject, timer } of this.waiting.values()) {
      clearTimeout(timer);
      reject(new CommandError("disconnected", _("The connection was lost.")));
    }
    this.waiting.clear();
    // After a new password this browser has a new cookie: only a second refusal means that it is signed out.
    // Leads to the login page.
    if (code === NOT_SIGNED_IN && this.wasRefused && this.#mayReload()) return location.reload();
    if (code === NOT_SIGNED_IN) this.wasRefused = true;
    if (code === TOO_MANY_SOCKETS) return this.onStatus("full");
    this.onStatus("lost");
    const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** this.failures++);
    this.retryTimer = setTimeout(() => this.connect(), Math.random() * wait + (MIN_WAIT_MS[code] ?? 50));
  }

  /** Try again now, after "full". */
  retry() {
    this.#retryNow();
  }

  #mayReload() {
    const last = Number(sessionStorage.getItem("refused") ?? 0);
    sessionStorage.setItem("refused", String(Date.now()));
    return Date.now() - last > RELOAD_INTERVAL_MS;
  }

  #retryNow() {
    if (this.socket?.readyState !== WebSocket.CLOSED) return;
    this.failures = 0;
    this.connect();
  }
}
