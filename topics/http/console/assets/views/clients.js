// Who is connected: streams, sockets and exports, how far behind they are; keys, and how much of their limits they use.

import { html, useState } from "../vendor/htm-preact.js";
import { call } from "../api.js";
import { ago, count, plural, rate, size } from "../format.js";
import { usePoll } from "../live.js";
import { Badge, Card, Do, Empty, Loaded, Name, Page, Table, numbers } from "../parts.js";

const KINDS = { stream: "stream", watch: "session", socket: "WebSocket", work: "jobs", export: "export" };

export function Clients({ figures }) {
  const [cursors, setCursors] = useState([]);
  const cursor = cursors.at(-1);
  const poll = usePoll((signal) => call("GET", "connections", { query: { cursor, page_size: 100 }, signal }), [cursor], 2000);
  const of = (used, most) => html`${count(used)}${most ? html` <span class="soft">of ${count(most)}</span>` : ""}`;
  return html`<${Page} title="Clients">
    ${figures && html`<p class="foot">${plural(figures.connections.open, "open connection")}, ${plural(figures.connections.sessions, "watch session")}, ${rate(figures.rates?.requests)} requests/s</p>`}
    <${Loaded} poll=${poll}>${(page) => html`
      <${Card} title="Streams, sockets and exports">
        <${Table} label="Streams, sockets and exports" rows=${page.connections} rowKey=${(one) => one.id} empty=${html`<${Empty} title="Nobody is connected for longer than a request." command="topics tail -f orders" />`} columns=${[
          { title: "Kind", cell: (one) => html`<${Badge}>${KINDS[one.kind]}<//>` },
          { title: "Topics", cell: (one) => html`<${Name}>${one.topics.join(", ")}<//>${one.topics_total > one.topics.length ? ` and ${count(one.topics_total - one.topics.length)} more` : ""}` },
          numbers("Behind", (one) => one.lag),
          { title: "Waiting", class: "right", cell: (one) => size(one.waiting_bytes) },
          { title: "Since", class: "right nowrap", cell: (one) => ago(one.since) },
          { title: "Peer", class: "wide", cell: (one) => html`<${Name}>${one.peer}<//>` },
          { title: "Key", class: "wide", cell: (one) => html`<${Name}>${one.key}<//>` },
        ]} />
        <div class="pager">${cursors.length > 0 && html`<${Do} class="small" onClick=${() => setCursors(cursors.slice(0, -1))}>Back<//>`}
          ${page.next_cursor && html`<${Do} class="small" onClick=${() => setCursors([...cursors, page.next_cursor])}>More<//>`}<span class="foot">${plural(page.total, "open connection")}</span></div>
      <//>
      <${Card} title="Keys">
        <${Table} label="Keys" rows=${page.keys} rowKey=${(one) => one.key} empty=${html`<${Empty} title="The daemon has no keys: everybody who reaches it may do everything." command="TOPICS_API_KEYS=secret:read+write:orders" />`} columns=${[
          { title: "Key", cell: (one) => html`<${Name}>${one.key}<//>` },
          { title: "May", cell: (one) => one.scopes.map((scope) => html`<${Badge} key=${scope}>${scope}<//> `) },
          { title: "Topics", class: "wide", cell: (one) => (one.prefixes.length === 0 ? "all" : html`<${Name}>${one.prefixes.map((prefix) => `${prefix}*`).join(", ")}<//>`) },
          { title: "Requests", class: "right nowrap", cell: (one) => of(one.requests, page.limits.requests) },
          { title: "Streams", class: "right nowrap", cell: (one) => of(one.connections, page.limits.connections) },
          { title: "Sessions", class: "right nowrap wide", cell: (one) => of(one.sessions, page.limits.sessions) },
        ]} />
        ${page.limits.requests_per_s > 0 && html`<p class="foot">Each key may make ${plural(page.limits.requests_per_s, "request")} a second${page.limits.bytes_per_s ? `, of ${size(page.limits.bytes_per_s)}` : ""}.</p>`}
      <//>`}<//>
  <//>`;
}
