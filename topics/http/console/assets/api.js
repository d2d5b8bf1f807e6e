// Calls of the daemon's interface (`/v0`), the key, and whether the daemon answers.
// The key is kept in sessionStorage, for this tab only, and sent in a header, so that no URL has it.

const BASE = new URL("../v0/", import.meta.url);
const KEY = "topics.key";
const PATIENCE_MS = 20_000;
const REMEMBERED = 40;
const PING_MS = 1000;

/** A refusal of the daemon, or no answer at all (status 0). */
export class Failure extends Error {
  constructor(status, code, message, detail = {}) {
    super(message);
    Object.assign(this, { status, code, detail });
  }
}

/** A value that views look at, and are told of when it changes. */
export class Observed {
  constructor(value) {
    this.value = value;
    this.listeners = new Set();
  }
  set(value) {
    this.value = value;
    for (const listener of [...this.listeners]) listener();
  }
}

/** The daemon, as far as this tab knows: `up` (it answers), `replay` (0..1 while it starts), `isStandby`, `askKey`, and `rights`. */
export const daemon = new Observed({ up: true, replay: null, stopping: null, isStandby: false, askKey: false, badKey: false, rights: null });

/** Raised whenever everything should be asked again: a new key, a daemon that is back. */
export const generation = new Observed(0);

const change = (fields) => {
  const now = daemon.value;
  if (Object.entries(fields).some(([name, value]) => now[name] !== value)) daemon.set({ ...now, ...fields });
};

let key = sessionStorage.getItem(KEY);
const remembered = new Map();

export const hasKey = () => key !== null;

export function useKey(text) {
  key = text;
  if (text === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, text);
  remembered.clear();
  change({ askKey: false, badKey: false, rights: null });
  generation.set(generation.value + 1);
  return loadRights();
}

/** Ask what the key may do. Raises Failure. */
export async function loadRights() {
  const rights = await call("GET", "key");
  change({ rights });
}

/** Whether the key has these scopes, and covers this name. On a standby nobody may do more than look. */
export function may(scopes, name = null) {
  const { rights, isStandby } = daemon.value;
  if (rights === null || (isStandby && scopes !== "read")) return false;
  if (!scopes.split(" ").every((scope) => rights.scopes.includes(scope))) return false;
  return name === null || rights.prefixes.length === 0 || rights.prefixes.some((prefix) => name.startsWith(prefix));
}

/** A path below `/v0` of parts that are names, and a query of the parameters that are not null. */
export function address(parts, query = {}) {
  const url = new URL(parts.map(encodeURIComponent).join("/"), BASE);
  for (const [name, value] of Object.entries(query)) if (value != null && value !== "") url.searchParams.set(name, value);
  return url;
}

export const headers = (more = {}) => ({ "Topics-Strict": "1", ...(key === null ? {} : { Authorization: `Bearer ${key}` }), ...more });

/** One call. `path` is a text such as `key`, or a list of names. Returns the answer's JSON; raises Failure. */
export async function call(method, path, { query = {}, body, signal, exact = false } = {}) {
  const url = address(typeof path === "string" ? path.split("/") : path, query);
  const known = method === "GET" ? remembered.get(url.href) : undefined;
  const sent = headers({
    Accept: "application/json",
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...(known === undefined ? {} : { "If-None-Match": known.tag }),
  });
  const limit = AbortSignal.timeout(PATIENCE_MS);
  let answer, text;
  try {
    answer = await fetch(url, {
      method, headers: sent, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      signal: signal === undefined ? limit : AbortSignal.any([signal, limit]),
    });
    text = answer.status === 304 ? "" : await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    lost();
    throw new Failure(0, "no_answer", "The daemon does not answer.");
  }
  found(answer.headers.get("topics-role") === "standby");
  if (answer.status === 304) return known.value;
  if (!answer.ok) throw refused(answer.status, text);
  const value = exact ? parseExact(text) : JSON.parse(text);
  const tag = answer.headers.get("etag");
  if (method === "GET" && tag !== null) {
    remembered.delete(url.href);
    remembered.set(url.href, { tag, value });
    if (remembered.size > REMEMBERED) remembered.delete(remembered.keys().next().value);
  }
  return value;
}

/** The filter that is written as text. Raises Failure. */
export const filterOf = async (text) => (await call("GET", "filter", { query: { text } })).filter;

export function refused(status, text) {
  let error = { code: String(status), message: `The daemon answered ${status}.`, detail: {} };
  try {
    error = JSON.parse(text).error ?? error;
  } catch {
    // Something between the browser and the daemon has answered.
  }
  if (status === 401) change({ askKey: true, badKey: key !== null });
  if (error.code === "not_ready" && error.detail?.replay_progress !== undefined) {
    change({ replay: error.detail.replay_progress });
    awaitReturn();
  }
  // A standby says so in each answer, and the page offers nothing that gets this one.
  if (error.code === "shutting_down" || (error.code === "not_owner" && !daemon.value.isStandby)) change({ stopping: error.code, owner: error.detail?.owner });
  return new Failure(status, error.code, error.message, error.detail ?? {});
}

// -- a daemon that is away --------------------------------------------------------------------------------------------

let pinging = null;

export function lost() {
  change({ up: false });
  awaitReturn();
}

function found(isStandby) {
  change({ up: true, stopping: null, isStandby });
}

/** Ask for readiness until the daemon is ready, then have everything asked again. */
function awaitReturn() {
  pinging ??= setInterval(async () => {
    try {
      const answer = await fetch(new URL("ready", BASE), { headers: headers(), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(5000) });
      const { error } = await answer.json();
      change({ up: true, replay: error?.detail?.replay_progress ?? null, stopping: ["shutting_down", "not_owner"].find((code) => code === error?.code) ?? null });
      if (!answer.ok && answer.status !== 401) return;
    } catch {
      change({ up: false });
      return;
    }
    clearInterval(pinging);
    pinging = null;
    remembered.clear();
    generation.set(generation.value + 1);
    loadRights().catch(() => {});
  }, PING_MS);
}

// -- JSON without loss ------------------------------------------------------------------------------------------------

/** A number that JavaScript would round: it is shown as it was written. */
export class ExactNumber {
  constructor(text) {
    this.text = text;
  }
  toJSON() {
    return JSON.rawJSON?.(this.text) ?? Number(this.text);
  }
}

/** Parse JSON; numbers that a double does not hold as they are written become ExactNumber, where the browser can. */
export function parseExact(text) {
  return JSON.parse(text, function (name, value, context) {
    if (typeof value === "number" && context?.source !== undefined && String(value) !== context.source) return new ExactNumber(context.source);
    return value;
  });
}
