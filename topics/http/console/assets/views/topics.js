// The topics: search by the beginning of the name, sort, create. However many there are, only the rows in view are drawn,
// and only the pages in view are asked for again.

import { Badge, Busy, Choice, Confirm, Do, Empty, LongTable, NoTopic, Page, Search, Text, Trouble, call, count, html, link, may, names, numbers, rate, size, useCallback, useEffect, useMemo, usePoll, useRef, useState } from "../kit.js";
import { ConfigFields, patchOf } from "./topic_config.js";

const PAGE = 200;
const SORTS = [["name", "by name"], ["records", "most records"], ["bytes", "largest"], ["written", "written last"]];

export function Topics({ address }) {
  const prefix = address.query.get("prefix") ?? "";
  const sort = address.query.get("sort") ?? "name";
  const [creating, setCreating] = useState(false);
  const [typed, setTyped] = useState(prefix);
  useEffect(() => setTyped(prefix), [prefix]);
  useEffect(() => {
    const timer = setTimeout(() => typed !== prefix && go({ prefix: typed, sort }), 200);
    return () => clearTimeout(timer);
  }, [typed, prefix, sort]);
  const go = (query) => {
    const params = new URLSearchParams(Object.entries(query).filter(([name, value]) => value && !(name === "sort" && value === "name")));
    history.replaceState(null, "", `#/topics${params.size > 0 ? `?${params}` : ""}`);
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  return html`<${Page} title="Topics" actions=${may("admin") && html`<${Do} class="primary" onClick=${() => setCreating(true)}>Create a topic<//>`}>
    <${Search} label="Name begins with" value=${typed} set=${setTyped}><${Choice} label="Order" value=${sort} set=${(value) => go({ prefix: typed, sort: value })} options=${SORTS} /><//>
    <${List} prefix=${prefix} sort=${sort} key=${`${prefix} ${sort}`} />
    ${creating && html`<${Create} close=${() => setCreating(false)} />`}
  <//>`;
}

/** The pages that are known, each with its cursor. */
function List({ prefix, sort }) {
  const isSorted = sort !== "name";
  const [pages, setPages] = useState([]);
  const [view, setView] = useState([0, 1]);
  const [error, setError] = useState(null);
  const rates = useRates();
  const loading = useRef(false);
  const ask = useCallback((cursor, signal) => call("GET", "topics", {
    signal, query: { prefix, page_size: PAGE, cursor, sort: isSorted ? sort : null },
  }), [prefix, sort]);
  const more = useCallback(async () => {
    const last = pages.at(-1);
    if (loading.current || last === undefined || last.next === undefined) return;
    loading.current = true;
    try {
      const page = await ask(last.next);
      setPages((known) => (known.at(-1) === last ? [...known, { cursor: last.next, next: page.next_cursor, topics: page.topics }] : known));
      setError(null);
    } catch (failure) {
      setError(failure);
    } finally {
      loading.current = false;
    }
  }, [pages, ask]);
  const shown = useMemo(() => {
    const starts = [];
    let at = 0;
    for (const page of pages) {
      starts.push(at);
      at += page.topics.length;
    }
    return pages.map((_, i) => i).filter((i) => starts[i] < view[1] && starts[i] + pages[i].topics.length > view[0]);
  }, [pages, view]);
  const first = shown[0] ?? 0, last = Math.min(shown.at(-1) ?? 0, first + 2);
  const poll = usePoll(async (signal) => {
    const asked = [];
    for (let i = first; i <= last; i += 1) asked.push(await ask(pages[i]?.cursor, signal));
    return { pages: asked, first, performance: { server_total_ms: asked.reduce((sum, page) => sum + page.performance.server_total_ms, 0) } };
  }, [prefix, sort, first, last], 2000);
  useEffect(() => {
    if (poll.data === null) return;
    setPages((known) => {
      const next = [...known];
      poll.data.pages.forEach((page, i) => {
        const at = poll.data.first + i;
        next[at] = { cursor: known[at]?.cursor, next: page.next_cursor, topics: page.topics };
      });
      return next;
    });
    rates.look(poll.data.pages.flatMap((page) => page.topics));
  }, [poll.data]);
  const rows = useMemo(() => pages.flatMap((page) => page.topics), [pages]);
  if (poll.data === null && pages.length === 0) return poll.error ? html`<${Trouble} error=${poll.error} retry=${poll.now} />` : html`<${Busy} />`;
  if (rows.length === 0) return prefix
    ? html`<${Empty} title=${`No topic begins with ${prefix}.`}><a href="#/topics">Show all topics</a><//>`
    : html`<${NoTopic} />`;
  const failure = error ?? poll.error;
  const complete = !isSorted && pages.at(-1).next === undefined;
  return html`
    ${failure?.status > 0 && html`<${Trouble} error=${failure} />`}
    <${LongTable} label="Topics" rows=${rows} total=${complete || isSorted ? rows.length : -1} rowKey=${(topic) => topic.topic} onEnd=${more} onView=${(a, b) => setView([a, b])} class="fill" columns=${[
      names("Topic", "topic", "topics"),
      { title: "Kind", class: "wide nowrap", cell: (topic) => html`${topic.type === "queue" && html`<${Badge} kind="queue">queue<//> `}<${Badge}>${topic.durability}<//>` },
      numbers("Records/s", (topic) => rates.of(topic), false, rate),
      numbers("Records", "count"),
      numbers("Size", "bytes", true, size),
      numbers("Head", "head_seq", true), numbers("Priority", "effective_priority", true),
    ]} />
    <p class="foot" role="status">${complete || isSorted ? count(rows.length) : `first ${count(rows.length)}`} ${rows.length === 1 ? "topic" : "topics"}${isSorted ? `, ${SORTS.find(([key]) => key === sort)[1]}` : ""}</p>`;
}

/** Records a second, from two looks at the head of a topic. */
function useRates() {
  const seen = useRef(new Map());
  return {
    look(topics) {
      const now = performance.now();
      const next = new Map();
      for (const { topic, head_seq: head, epoch } of topics) {
        const before = seen.current.get(topic);
        const same = before?.epoch === epoch && head >= before.head;
        const seconds = same ? (now - before.at) / 1000 : 0;
        next.set(topic, { head, epoch, at: now, rate: seconds > 0.5 ? (head - before.head) / seconds : (same ? before.rate : null) });
      }
      seen.current = next;
    },
    of: (topic) => seen.current.get(topic.topic)?.rate ?? null,
  };
}

function Create({ close }) {
  const [name, setName] = useState("");
  const [config, setConfig] = useState({ type: "log" });
  const run = async () => {
    await call("PUT", ["topics", name], { body: patchOf(config, {}) });
    location.hash = link("topics", name);
  };
  return html`<${Confirm} title="Create a topic" action="Create" kind="primary" ready=${name !== ""} close=${close} run=${run}>
    <${Text} label="Name" value=${name} set=${setName} required maxlength="255" help="Letters, digits and . _ : - ; it begins with a letter or a digit." />
    <${ConfigFields} config=${config} set=${setConfig} creating /><//>`;
}
