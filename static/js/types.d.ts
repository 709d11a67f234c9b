// Types of our pages for the checker (jsconfig.json); browsers never load this file.

/**
 * An element of a template, whichever it is. Templates and scripts are read side by side, so a script may
 * use a property
 * of any of our elements; a property that none of them has is still an error.
 */
interface PageElement extends HTMLElement {
  // controls
  checked: boolean;
  defaultValue: string;
  disabled: boolean;
  enterKeyHint: string;
  files: FileList;
  indeterminate: boolean;
  name: string;
  options: HTMLOptionsCollection;
  placeholder: string;
  type: string;
  value: string;
  select(): void;
  setSelectionRange(start: number, end: number): void;
  // forms
  elements: PageControls;
  requestSubmit(): void;
  reset(): void;
  submit(): void;
  // dialogs and details
  open: boolean;
  returnValue: string;
  close(): void;
  showModal(): void;
  // links, pictures, times, templates
  alt: string;
  complete: boolean;
  content: DocumentFragment;
  dateTime: string;
  download: string;
  href: string;
  naturalWidth: number;
  rel: string;
  src: string;
  target: string;
}

/** The controls of a form, by number and by name. */
type PageControls = Iterable<PageElement> & { readonly [name: string]: PageElement };

interface ParentNode {
  querySelector(selectors: string): PageElement | null;
  querySelectorAll(selectors: string): NodeListOf<PageElement>;
}

interface Element extends HTMLOrSVGElement {
  closest(selectors: string): PageElement | null;
}

/** Vendored as a script that sets a global. */
declare var DOMPurify: {
  sanitize(html: string, options: Record<string, unknown>): DocumentFragment;
};

interface JSON {
  /** With the source text of each value, which TypeScript does not know yet. */
  parse(text: string, reviver: (key: string, value: any, context?: { source?: string }) => any): any;
}

// --- files ---

interface FileFacts {
  name: string;
  type: string;
  size: number;
}

/** Where a file's bytes are; `retry` counts up, so that no cache answers a second time. */
interface FileSource extends FileFacts {
  text?: string;
  download: string;
  page: string | null;
  content(retry?: number): string;
  frame(retry?: number): string;
}

/** Arguments of a renderer besides its source. */
interface RenderTools {
  signal: AbortSignal;
  retry: number;
  kind: string;
  fail(problem: unknown): void;
  guard<T extends (...given: any[]) => any>(action: T): T;
  onEscape(): void;
  showSource(): void;
}

// --- the session, as events and snapshots bring it ---

/** An event of the socket; `docs/` lists the kinds and their fields. */
interface SessionEvent {
  kind: string;
  session_id?: string;
  turn_id?: string;
  [field: string]: any;
}

/** A message of the transcript. */
interface Row {
  id: string;
  kind: string;
  sequence: number;
  turn_id: string | null;
  content: any;
  streaming?: boolean;
  points?: number; // code points of the content while it grows
  created_at: string;
  [field: string]: any;
}

interface Turn {
  id: string;
  status?: "queued" | "running" | "waiting";
  origin: string;
  run_ids: string[];
  attempt: number;
  model?: string;
  phase?: string;
  throttle?: string;
  activity?: any;
}

interface QueuedMessage {
  id: string;
  text: string;
  position: number;
  attachments?: { name: string }[];
}

interface Artifact extends FileFacts {
  file_id: string;
  created_at: string;
  call_id: string;
}

interface Goal {
  text: string;
  state: string;
  reason: string;
  continuations: number;
}

interface SessionState {
  rows: Map<string, Row>;
  order: string[]; // ids by sequence
  turn: Turn | null;
  queue: QueuedMessage[];
  queueVersion: number;
  questions: any[];
  approvals: any[]; // calls that wait for a person
  autoApprove: {
    enabled: boolean;
    cap_microdollars: number | null;
    sub_sessions?: boolean;
    inherited?: boolean;
  };
  todos: { text: string; status: "pending" | "in_progress" | "completed" }[];
  goal: Goal | null;
  context: { used_percent: number | null; estimated: boolean }; // how full the window was when the last turn ended
  artifacts: Artifact[]; // files the agent made, oldest first
  calls: Map<string, { tool?: string; state?: string; progress?: string }>; // of the turn in flight
  title: string;
  state: string;
  hasOlder: boolean;
  deleted: boolean;
  limit: any;
  meter: any; // the last usage.metered: how fast, and how full the context is
  gap: boolean; // a delta did not fit: only a fresh snapshot helps
  ended: SessionEvent | null; // the last ending, for the painter and the announcer
  changed: Set<string>; // ids of rows that were added, changed or removed
  replaced: boolean; // everything is new
}

/** A message that is being written or sent. */
interface Draft {
  text: string;
  files: any[];
  attachments?: string[];
  tier?: string;
  mode?: string;
}
