// Named consumers: position, lag, owner; moving one.

import { Card, Choice, Confirm, Delete, Do, Empty, Figures, Loaded, Name, Page, Rest, Search, Table, Text, To, ago, call, count, duration, html, may, numbers, shortTime, useGet, useHistory, useState, visible } from "../kit.js";
import { Graph } from "../graph.js";

export function Consumers({ address }) {
  const [, topic, consumer] = address.parts;
  if (consumer !== undefined) return html`<${One} topic=${topic} consumer=${consumer} key=${`${topic}/${consumer}`} />`;
  return html`<${List} prefix=${address.query.get("prefix") ?? topic ?? ""} />`;
}

function List({ prefix }) {
  const [typed, setTyped] = useState(prefix);
  const poll = useGet("consumers", { prefix: typed, page_size: 500 });
  return html`<${Page} title="Consumers">
    <${Search} label="Topic begins with" value=${typed} set=${setTyped} />
    <${Loaded} poll=${poll}>${(page) => html`
      <${Table} label="Consumers" rows=${page.consumers} rowKey=${(one) => `${one.topic}/${one.consumer}`} empty=${html`<${Card}><${Empty} title="There is no consumer." command="topics consumer create orders billing">A consumer is a position in a topic that the daemon keeps.<//><//>`} columns=${[
        { title: "Consumer", cell: (one) => html`<${To} at=${["consumers", one.topic, one.consumer]}>${`${one.topic} / ${one.consumer}`}<//>` },
        numbers("Position", "committed_seq"), numbers("Lag", "lag"),
        { title: "Owner", class: "wide", cell: (one) => (one.owner === null ? html`<span class="soft">nobody</span>` : html`<${Name}>${one.owner}<//>`) },
        numbers("Last commit", "last_commit_ts", true, ago),
      ]} />
      <${Rest} page=${page} rows=${page.consumers} />`}<//>
  <//>`;
}

function One({ topic, consumer }) {
  const parts = ["topics", topic, "consumers", consumer];
  const [dialog, open] = useState(null);
  const poll = useGet(parts);
  const seen = useHistory(poll, (one) => one.lag);
  return html`<${Page} title=${`${topic} / ${consumer}`} kind="consumer" actions=${html`
      ${may("write", topic) && html`<${Do} onClick=${() => open("seek")}>Seek…<//>`}
      ${may("delete", topic) && html`<${Do} class="danger" onClick=${() => open("delete")}>Delete<//>`}`}>
    <${Loaded} poll=${poll}>${(now) => html`
      <${Graph} title="Lag" times=${seen.times} series=${[{ name: "seqs", values: seen.values, show: count }]} />
      <${Card}><${Figures} items=${[
        ["Topic", html`<${To} at=${["topics", topic]} />`], ["Position", now.committed_seq], ["Lag", now.lag], ["Last commit", ago(now.last_commit_ts)],
        ["Owner", now.owner === null ? "nobody" : html`<${Name}>${now.owner}<//>`], now.owner !== null && ["Until", shortTime(now.deadline)], ["Generation", now.generation],
        ["Kept unused", now.ttl_ms ? `for ${duration(now.ttl_ms)}` : "for ever"], now.filter && ["Filter", html`<code>${visible(JSON.stringify(now.filter))}</code>`],
      ]} /><//>
      ${dialog === "seek" && html`<${Seek} parts=${parts} now=${now} close=${() => (open(null), poll.now())} />`}
      ${dialog === "delete" && html`<${Delete} what="consumer" name=${consumer} path=${parts} then="#/consumers" close=${() => open(null)}>Its position is forgotten. The records stay.<//>`}`}<//>
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
