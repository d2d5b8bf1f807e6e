// What moves without reloading: lists by polling, and the records of one topic over a stream.
// Nothing is asked while the tab is hidden, and a poll waits so long that it costs the daemon 2 % of a core at most.

import { useCallback, useEffect, useReducer, useRef, useState } from "./vendor/htm-preact.js";
import { Failure, address, call, generation, headers, lost, parseExact, refused } from "./api.js";

// A call that took the daemon 1 ms is repeated after 50 ms at the earliest.
const COST = 50;
// Answers of a poll that a graph shows.
const SEEN = 150;
// Records of a live tail; records of a list that is scrolled.
const KEPT = 1000;
const MOST = 20_000;
// Records a second from which on a tail shows samples.
const BUSY = 300;
const SAMPLE_MS = 1000;
const RETRY_MS = 1000;

/** Draw again whenever an Observed changes; returns its value. */
export function useObserved(observed) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    observed.listeners.add(redraw);
    return () => observed.listeners.delete(redraw);
  }, [observed]);
  return observed.value;
}

function useVisible() {
  const [isVisible, set] = useState(!document.hidden);
  useEffect(() => {
    const look = () => set(!document.hidden);
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return isVisible;
}

/** The answer of `load(signal)`, asked again every `every` ms while the tab is visible. `now()` asks at once.
 *  After a failure the last answer stays, with `error`. `load` is null: nothing is asked. */
export function usePoll(load, inputs, every = 2000) {
  const [state, set] = useState({ data: null, error: null, at: 0 });
  const isVisible = useVisible();
  const version = useObserved(generation);
  const again = useRef(() => {});
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) set({ data: null, error: null, at: 0 });
    isFirst.current = false;
  }, inputs);
  useEffect(() => {
    if (load === null || !isVisible) return undefined;
    const ended = new AbortController();
    let timer = null, running = false, wanted = false;
    const look = async () => {
      clearTimeout(timer);
      if (running) {
        wanted = true;
        return;
      }
      running = true;
      let cost = 0;
      try {
        const data = await load(ended.signal);
        if (ended.signal.aborted) return;
        cost = data?.performance?.server_total_ms ?? 0;
        set({ data, error: null, at: Date.now() });
      } catch (error) {
        if (ended.signal.aborted) return;
        if (!(error instanceof Failure)) console.error(error);
        set((before) => ({ ...before, data: error.status === 404 ? null : before.data, error }));
      } finally {
        running = false;
      }
      const delay = wanted ? 0 : Math.max(every, cost * COST);
      wanted = false;
      timer = setTimeout(look, delay);
    };
    again.current = look;
    look();
    return () => {
      ended.abort();
      clearTimeout(timer);
    };
  }, [...inputs, isVisible, version, load === null, every]);
  return { ...state, now: useCallback(() => again.current(), []) };
}

/** A poll of one call: `path` and `query` are those of `call`. It begins anew when they change. */
export const useGet = (path, query = {}, every = 2000, exact = false) =>
  usePoll((signal) => call("GET", path, { query, signal, exact }), [JSON.stringify([path, query])], every);

/** The values that `pick` finds in each answer of a poll, as the view has seen them: `{times, values}`. */
export function useHistory(poll, pick) {
  const seen = useRef({ at: 0, times: [], values: [] });
  if (poll.data !== null && poll.at !== seen.current.at) {
    const { times, values } = seen.current;
    seen.current = { at: poll.at, times: [...times, poll.at / 1000].slice(-SEEN), values: [...values, pick(poll.data)].slice(-SEEN) };
  }
  return seen.current;
}

/** Do an action of the user: `run(task)`; `busy` while it runs, `error` if it failed. */
export function useAction() {
  const [state, set] = useState({ busy: false, error: null });
  const run = useCallback(async (task) => {
    set({ busy: true, error: null });
    try {
      const result = await task();
      set({ busy: false, error: null });
      return result ?? true;
    } catch (error) {
      if (!(error instanceof Failure)) console.error(error);
      set({ busy: false, error });
      return null;
    }
  }, []);
  return { ...state, run, clear: () => set({ busy: false, error: null }) };
}

/** Events of a stream of server-sent events, from a fetch: `{event, id, data}`. Ends when the stream ends. */
async function* eventsOf(url, signal, lastId) {
  const more = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
  let answer;
  try {
    answer = await fetch(url, { headers: headers(more), cache: "no-store", credentials: "omit", signal });
  } catch (error) {
    if (!signal.aborted) lost();
    throw error;
  }
  if (!answer.ok) throw refused(answer.status, await answer.text());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const found = { event: "message", id: "", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) found[line.slice(0, at)] = line.slice(at + 2);
      }
      text = text.slice(end + 2);
      if (found.data) yield found;
    }
  }
}

/** The newest records of a topic as they come, the newest first: `state` is `loading`, `live`, `sampled` (too many come
 *  to show all), `paused`, `fixed` or `waiting` (for the daemon). `filter` is JSON as text. With `start` the records are
 *  those up to this seq, and do not move. `older()` adds the records below. One stream for the tab. */
export function useTail(topic, filter, start, isPaused) {
  const [view, set] = useState(NOTHING);
  const isVisible = useVisible();
  const version = useObserved(generation);
  const present = useRef(view);
  present.current = view;
  useEffect(() => set(NOTHING), [topic, filter, start]);
  useEffect(() => {
    if (isPaused && present.current.state !== "loading") set((before) => ({ ...before, state: before.state === "fixed" ? "fixed" : "paused" }));
    if (isPaused || !isVisible) return undefined;
    const ended = new AbortController();
    follow(topic, filter, start, ended.signal, set);
    return () => ended.abort();
  }, [topic, filter, start, isPaused, isVisible, version]);
  const asking = useRef(false);
  const older = async () => {
    const { bottom, records } = present.current;
    if (asking.current || bottom <= 1 || records.length >= MOST) return;
    asking.current = true;
    try {
      const page = await before(topic, bottom, filter, undefined);
      set((now) => (now.bottom !== bottom ? now : { ...now, records: [...now.records, ...page.records], bottom: page.caught_up ? 1 : page.next_before_seq, missed: page.tombstone ?? now.missed }));
    } catch (error) {
      set((now) => ({ ...now, error }));
    } finally {
      asking.current = false;
    }
  };
  return { ...view, older };
}

const NOTHING = { records: [], state: "loading", error: null, rate: 0, missed: null, head: 0, bottom: 1 };

/** Records below a seq, the newest first. */
const before = (topic, seq, filter, signal, limit = 100) =>
  call("GET", ["topics", topic, "diff"], {
    query: { before_seq: seq, limit, include_tags: true, touch: false, filter }, exact: true, signal,
  });

/** Put a page of the newest records above those that are there; instead of them, if there is a gap between. */
function above(page, now) {
  const joins = now.records.length > 0 && page.next_before_seq <= now.head + 1;
  const records = joins ? merged(page.records, now.records) : page.records;
  const bottom = !joins ? (page.caught_up ? 1 : page.next_before_seq) : records.length < KEPT ? now.bottom : records.at(-1).$seq;
  return { ...now, records, bottom, head: page.next_from_seq, error: null, missed: page.tombstone ?? now.missed };
}

async function follow(topic, filter, start, signal, set) {
  while (!signal.aborted) {
    try {
      let page = await before(topic, start === null ? Number.MAX_SAFE_INTEGER : start + 1, filter, signal);
      set((now) => ({ ...above(page, now), state: start === null ? "live" : "fixed" }));
      if (start !== null) return;
      await stream(topic, filter, page.next_from_seq, signal, set);
      while (!signal.aborted) {
        const { head_seq: head } = page;
        await pause(SAMPLE_MS, signal);
        page = await before(topic, Number.MAX_SAFE_INTEGER, filter, signal);
        const rate = Math.round(((page.head_seq - head) * 1000) / SAMPLE_MS);
        set((now) => ({ ...above(page, now), state: "sampled", rate }));
        if (rate < BUSY / 2) break;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Failure) && error.name !== "TypeError") console.error(error);
      set((now) => ({ ...now, state: "waiting", error: error instanceof Failure ? error : null }));
      if (error.status === 404 || error.status === 400 || error.status === 403) return;
      await pause(RETRY_MS, signal);
    }
  }
}

/** Show what a stream brings until it brings too much, or ends. */
async function stream(topic, filter, from, signal, set) {
  const own = new AbortController();
  const url = address(["topics", topic, "stream"], { from_seq: from, include_tags: true, touch: false, limit: 200, filter });
  let waiting = [], reached = from, drawn = null, began = performance.now(), came = 0;
  const draw = () => {
    drawn = null;
    const batch = waiting;
    waiting = [];
    const head = reached;
    set((now) => {
      const records = merged(batch.reverse(), now.records);
      return { ...now, records, head, bottom: records.length < KEPT ? now.bottom : records.at(-1).$seq, state: "live", error: null };
    });
  };
  try {
    for await (const { event, data } of eventsOf(url, AbortSignal.any([signal, own.signal]))) {
      if (event === "error") {
        const { code } = JSON.parse(data);
        if (code !== 429 && code !== 504) return;
      } else if (event === "topic-deleted") throw new Failure(404, "topic_not_found", "The topic was deleted.");
      else if (event === "tombstone") {
        const missed = JSON.parse(data);
        set((now) => ({ ...now, missed }));
      } else if (event === "record") {
        const { records, to_seq } = parseExact(data);
        waiting.push(...records);
        reached = to_seq;
        came += records.length;
        drawn ??= setTimeout(draw, 100);
      }
      const now = performance.now();
      if (now - began >= 1000) {
        if ((came * 1000) / (now - began) > BUSY) return;
        began = now;
        came = 0;
      }
    }
  } finally {
    clearTimeout(drawn);
    if (!signal.aborted && waiting.length > 0) draw();
    own.abort();
  }
}

/** Records of both lists, the newest first, without those that are there twice. */
function merged(newer, older) {
  const seen = new Set(newer.map((record) => record.$seq));
  const all = [...newer, ...older.filter((record) => !seen.has(record.$seq))];
  all.sort((a, b) => b.$seq - a.$seq);
  return all.slice(0, KEPT);
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
