// Named consumers: position, lag, owner; moving one.

import { html, useState } from "../vendor/htm-preact.js";
import { call, may } from "../api.js";
import { ago, count, duration } from "../format.js";
import { Graph } from "../graph.js";
import { useHistory, usePoll } from "../live.js";
import { Card, Choice, Confirm, Do, Empty, Figures, Loaded, Name, Page, Rest, Search, Table, Text, link, numbers } from "../parts.js";

export function Consumers({ address }) {
  const [, topic, consumer] = address.parts;
  if (consumer !== undefined) return html`<${One} topic=${topic} consumer=${consumer} key=${`${topic}/${consumer}`} />`;
  return html`<${List} prefix=${address.query.get("prefix") ?? topic ?? ""} />`;
}

function List({ prefix }) {
  const [typed, setTyped] = useState(prefix);
  const poll = usePoll((signal) => call("GET", "consumers", { query: { prefix: typed, page_size: 500 }, signal }), [typed], 2000);
  return html`<${Page} title="Consumers">
    <${Search} label="Topic begins with" value=${typed} set=${setTyped} />
    <${Loaded} poll=${poll}>${(page) => html`
      <${Table} label="Consumers" rows=${page.consumers} rowKey=${(one) => `${one.topic}/${one.consumer}`} empty=${html`<${Card}><${Empty} title="There is no consumer." command="topics consumer create orders billing">A consumer is a position in a topic that the daemon keeps.<//><//>`} columns=${[
        { title: "Consumer", cell: (one) => html`<a href=${link("consumers", one.topic, one.consumer)}><${Name}>${`${one.topic} / ${one.consumer}`}<//></a>` },
        numbers("Position", (one) => one.committed_seq), numbers("Lag", (one) => one.lag),
        { title: "Owner", class: "wide", cell: (one) => (one.owner === null ? html`<span class="soft">nobody</span>` : html`<${Name}>${one.owner}<//>`) },
        numbers("Last commit", (one) => one.last_commit_ts, true, ago),
      ]} />
      <${Rest} page=${page} rows=${page.consumers} />`}<//>
  <//>`;
}

function One({ topic, consumer }) {
  const parts = ["topics", topic, "consumers", consumer];
  const [dialog, open] = useState(null);
  const poll = usePoll((signal) => call("GET", parts, { signal }), [topic, consumer], 2000);
  const seen = useHistory(poll, (one) => one.lag);
  return html`<${Page} title=${`${topic} / ${consumer}`} kind="consumer" actions=${html`
      ${may("write", topic) && html`<${Do} onClick=${() => open("seek")}>Seek…<//>`}
      ${may("delete", topic) && html`<${Do} class="danger" onClick=${() => open("delete")}>Delete<//>`}`}>
    <${Loaded} poll=${poll}>${(now) => html`
      <${Graph} title="Lag" times=${seen.times} series=${[{ name: "seqs", values: seen.values, show: count }]} />
      <${Card}><${Figures} items=${[
        ["Topic", html`<a class="name" href=${link("topics", topic)}>${topic}</a>`], ["Position", count(now.committed_seq)], ["Lag", count(now.lag)], ["Last commit", ago(now.last_commit_ts)],
        ["Owner", now.owner === null ? "nobody" : html`<${Name}>${now.owner}<//>`], now.owner !== null && ["Until", new Date(now.deadline).toLocaleTimeString()], ["Generation", count(now.generation)],
        ["Unused for", now.ttl_ms ? `at most ${duration(now.ttl_ms)}` : "ever"], now.filter && ["Filter", html`<code>${JSON.stringify(now.filter)}</code>`],
      ]} /><//>
      ${dialog === "seek" && html`<${Seek} parts=${parts} now=${now} close=${() => (open(null), poll.now())} />`}
      ${dialog === "delete" && html`<${Confirm} title="Delete the consumer" name=${consumer} action="Delete the consumer" close=${() => open(null)} run=${async () => (await call("DELETE", parts), (location.hash = link("consumers")))}><p>Its position is forgotten. The records stay.</p><//>`}`}<//>
  <//>`;
}

function Seek({ parts, now, close }) {
  const [to, setTo] = useState("seq");
  const [value, setValue] = useState(String(now.committed_seq));
  const body = to === "seq" ? { seq: Number(value) } : to === "ts" ? { ts: new Date(value).getTime() } : { to };
  return html`<${Confirm} title="Seek" action="Move the consumer" close=${close} run=${() => call("POST", [...parts, "seek"], { body })}>
    <p>It goes on at another place: what lies between is read again, or is not read.</p>
    <${Choice} label="To" value=${to} set=${(next) => (setTo(next), setValue(next === "seq" ? String(now.committed_seq) : ""))} options=${[["seq", "behind a seq"], ["ts", "a time"], ["earliest", "the first record"], ["tail", "the end"]]} />
    ${to === "seq" && html`<${Text} label="Seq" value=${value} set=${setValue} inputmode="numeric" />`}
    ${to === "ts" && html`<${Text} label="Time" type="datetime-local" value=${value} set=${setValue} />`}<//>`;
}
