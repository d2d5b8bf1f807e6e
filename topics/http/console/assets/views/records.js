// The records of a topic: live from the newest on, or from a seq or a time, with a filter; one of them in detail.

import { Badge, Busy, Choice, Copy, Do, Empty, Figures, LongTable, Name, Opener, Text, Trouble, address, count, filterOf, headers, html, link, plural, shortTime, size, time, useEffect, useRef, useState, useTail, visible } from "../kit.js";
import { JsonTree, brief, textOf } from "../json_tree.js";

const REASONS = { cap: "evicted by a cap", ttl: "expired", mixed: "evicted or expired", lost: "lost in a crash", corrupt: "damaged on the disk", source_trim: "lost by the source of a router", recreated: "of a topic that was deleted" };
const previews = new WeakMap();

const preview = (record) => {
  if (!previews.has(record)) previews.set(record, brief(record.data));
  return previews.get(record);
};

/** The first seq at or after a time: the first line of an export. Null if there is none. */
async function seqAt(topic, ts) {
  const ended = new AbortController();
  const answer = await fetch(address(["topics", topic, "records"], { from_ts: ts, include_data: false, include_meta: false }), {
    headers: headers(), cache: "no-store", credentials: "omit", signal: ended.signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (!text.includes("\n")) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value;
  }
  ended.abort();
  const first = JSON.parse(text.split("\n")[0]);
  return first.$seq ?? first.$tombstone?.gap_from ?? null;
}

export function Records({ topic, state, query }) {
  const text = query.get("filter") ?? "";
  const [typed, setTyped] = useState(text);
  const [filter, setFilter] = useState({ text: "", json: null, error: null });
  const [from, setFrom] = useState({ kind: "newest", value: "", start: null, error: null });
  const [paused, setPaused] = useState(false);
  const [atTop, setTop] = useState(true);
  const [open, setOpen] = useState(null);
  const apply = async (wanted) => {
    if (wanted.trim() === "") return setFilter({ text: "", json: null, error: null });
    try {
      return setFilter({ text: wanted, json: JSON.stringify(await filterOf(wanted)), error: null });
    } catch (error) {
      return setFilter((before) => ({ ...before, error }));
    }
  };
  useEffect(() => {
    setTyped(text);
    apply(text);
  }, [text]);
  const submit = (event) => {
    event.preventDefault();
    history.replaceState(null, "", `${link("topics", topic)}${typed.trim() ? `?filter=${encodeURIComponent(typed)}` : ""}`);
    apply(typed);
    begin(from);
  };
  const begin = async ({ kind, value }) => {
    const next = { kind, value, start: null, error: null };
    try {
      if (kind === "seq" && /^\d+$/.test(value)) next.start = Number(value);
      if (kind === "time" && value) {
        const seq = await seqAt(topic, new Date(value).getTime());
        next.start = seq === null ? state.head_seq : Math.max(seq - 1, 0) + 1;
      }
    } catch (error) {
      next.error = error;
    }
    setFrom(next);
  };
  const tail = useTail(topic, filter.json, from.start, paused || !atTop);
  const chosen = tail.records.find((record) => record.$seq === open) ?? null;
  const waiting = Math.max(state.head_seq - tail.head, 0);
  return html`<form class="tools" role="search" onSubmit=${submit}>
      <${Text} label="Filter" class="grow mono" value=${typed} set=${setTyped} data-search type="search" placeholder=${`tag = "eu" and data./total >= 10`}
        error=${filter.error && filter.error.message.replace(/^text: /, "")} />
      <${Choice} label="From" value=${from.kind} set=${(kind) => (kind === "newest" ? begin({ kind, value: "" }) : setFrom({ ...from, kind }))} options=${[["newest", "the newest"], ["seq", "a seq"], ["time", "a time"]]} />
      ${from.kind === "seq" && html`<${Text} label="Seq" value=${from.value} set=${(value) => setFrom({ ...from, value })} inputmode="numeric" />`}
      ${from.kind === "time" && html`<${Text} label="Time" type="datetime-local" step="1" value=${from.value} set=${(value) => setFrom({ ...from, value })} />`}
      <button class="primary">Show</button>
      ${from.start === null && html`<${Do} data-pause aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}<//>`}
    </form>
    <${Trouble} error=${from.error ?? tail.error} />
    <p class="foot" role="status"><${Stand} tail=${tail} waiting=${waiting} atTop=${atTop} /></p>
    ${tail.missed && html`<p class="notice warn">Seqs ${count(tail.missed.gap_from)} to ${count(tail.missed.gap_to)} are gone: ${REASONS[tail.missed.reason] ?? tail.missed.reason}.</p>`}
    <div class="split">
      ${tail.records.length > 0 ? html`<${LongTable} label="Records" class="fill records" rows=${tail.records} total=${-1} rowHeight=${34} rowKey=${(record) => record.$seq} selected=${open}
        onEnd=${tail.older} onView=${(first) => setTop(first === 0)} columns=${[
          { title: "Seq", class: "right nowrap", cell: (record) => html`<${Opener} seq=${record.$seq} open=${open} set=${setOpen} />` },
          { title: "Time", class: "nowrap", cell: (record) => html`<span title=${time(record.$ts)}>${shortTime(record.$ts)}</span>` },
          { title: "Tag", class: "wide name short", cell: (record) => record.$tag !== undefined && visible(record.$tag) },
          { title: "Node", class: "wide name short", cell: (record) => record.$node !== undefined && visible(record.$node) },
          { title: "Data", class: "code line", cell: (record) => preview(record) },
        ]} />`
      : tail.state === "loading" ? html`<${Busy} />`
      : filter.text ? html`<${Empty} title="No record matches the filter, as far as it was looked for."><${Do} onClick=${tail.older}>Look further<//><//>`
      : html`<${Empty} title="The topic has no records." command=${`topics append ${topic} '{"text": "hello"}'`} />`}
      ${chosen && html`<${Detail} topic=${topic} record=${chosen} close=${() => setOpen(null)} key=${chosen.$seq} />`}
    </div>`;
}

function Stand({ tail, waiting, atTop }) {
  switch (tail.state) {
    case "live": return html`<${Badge} kind="good">live<//> ${plural(tail.records.length, "record")} shown`;
    case "sampled": return html`<${Badge} kind="warn">samples<//> About ${count(tail.rate)} records come in a second, too many to show: the newest are shown once a second.`;
    case "paused": return html`<${Badge}>${atTop ? "paused" : "held while you read"}<//> ${waiting > 0 ? `${plural(waiting, "newer seq")}. ` : ""}${atTop ? "" : "Scroll to the top to go on."}`;
    case "fixed": return html`<${Badge}>fixed<//> ${plural(tail.records.length, "record")} shown, the newest first`;
    case "waiting": return html`<${Badge} kind="bad">waiting<//> The stream is broken off, and begins again by itself.`;
    default: return "Loading…";
  }
}

export function Detail({ topic, record, close }) {
  const heading = useRef(null);
  const url = `${location.origin}/v0/topics/${topic}/records/${record.$seq}`;
  const { data } = record;
  const isBytes = data !== null && typeof data === "object" && typeof data.$bytes === "string" && typeof data.$content_type === "string" && Object.keys(data).length === 2;
  useEffect(() => heading.current?.scrollIntoView({ block: "nearest" }), []);
  return html`<aside class="detail card" aria-label=${`Record ${record.$seq}`} onKeyDown=${(event) => event.key === "Escape" && close()}>
    <header class="card-head" ref=${heading}><h2>Seq ${count(record.$seq)}</h2>
      <div class="actions"><${Copy} label="Copy JSON" text=${() => textOf(record.data)} /><${Copy} label="Copy curl" text=${isBytes ? `curl ${url} -H 'accept: ${data.$content_type}' -o record` : `curl ${url}`} />
      <${Do} class="quiet icon" aria-label="Close the record" onClick=${close}>×<//></div></header>
    <${Figures} items=${[
      ["Time", time(record.$ts)],
      record.$tag !== undefined && ["Tag", html`<a href=${`${link("topics", topic)}?filter=${encodeURIComponent(`tag = ${JSON.stringify(record.$tag)}`)}`}><${Name}>${record.$tag}<//></a>`],
      record.$node !== undefined && ["Node", html`<${Name}>${record.$node}<//>`],
    ]} />
    ${record.meta && html`<h3>Meta</h3><${JsonTree} value=${record.meta} />`}
    <h3>Data</h3>
    ${isBytes ? html`<p>Raw bytes of the type <b class="name">${visible(data.$content_type)}</b>, ${size(Math.floor((data.$bytes.length * 3) / 4))}.</p>` : html`<${JsonTree} value=${data} />`}
  </aside>`;
}
