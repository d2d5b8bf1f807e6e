// Who is connected: streams, sockets and exports, how far behind they are; keys, and how much of their limits they use.

import { Badge, Card, Empty, Loaded, Name, Page, Table, ago, count, html, names, numbers, plural, rate, size, useGet, usePages } from "../kit.js";

const KINDS = { stream: "stream", watch: "session", socket: "WebSocket", work: "jobs", export: "export" };

export function Clients({ figures }) {
  const { cursor, buttons } = usePages();
  const poll = useGet("connections", { cursor, page_size: 100 });
  const of = (most) => (used) => html`${count(used)}${most ? html` <span class="soft">of ${count(most)}</span>` : ""}`;
  return html`<${Page} title="Clients">
    ${figures && html`<p class="foot">${plural(figures.connections.open, "open connection")}, ${plural(figures.connections.sessions, "watch session")}, ${rate(figures.rates?.requests)} requests/s</p>`}
    <${Loaded} poll=${poll}>${(page) => html`
      <${Card} title="Streams, sockets and exports">
        <${Table} label="Streams, sockets and exports" rows=${page.connections} rowKey=${(one) => one.id} empty=${html`<${Empty} title="Nobody is connected for longer than a request." command="topics tail -f orders" />`} columns=${[
          { title: "Kind", cell: (one) => html`<${Badge}>${KINDS[one.kind]}<//>` },
          { title: "Topics", cell: (one) => html`<${Name}>${one.topics.join(", ")}<//>${one.topics_total > one.topics.length ? ` and ${count(one.topics_total - one.topics.length)} more` : ""}` },
          numbers("Behind", "lag"),
          numbers("Waiting", "waiting_bytes", false, size), numbers("Since", "since", false, ago),
          names("Peer", "peer", null, true), names("Key", "key", null, true),
        ]} />
        ${buttons(page, html`<span class="foot">${count(page.total)} in all</span>`)}
      <//>
      <${Card} title="Keys">
        <${Table} label="Keys" rows=${page.keys} rowKey=${(one) => one.key} empty=${html`<${Empty} title="The daemon has no keys: everybody who reaches it may do everything." command="TOPICS_API_KEYS=secret:read+write:orders" />`} columns=${[
          names("Key", "key"),
          { title: "May", cell: (one) => one.scopes.map((scope) => html`<${Badge} key=${scope}>${scope}<//> `) },
          { title: "Topics", class: "wide", cell: (one) => (one.prefixes.length === 0 ? "all" : html`<${Name}>${one.prefixes.map((prefix) => `${prefix}*`).join(", ")}<//>`) },
          numbers("Requests", "requests", false, of(page.limits.requests)),
          numbers("Streams", "connections", false, of(page.limits.connections)),
          numbers("Sessions", "sessions", true, of(page.limits.sessions)),
        ]} />
        ${page.limits.requests_per_s > 0 && html`<p class="foot">Each key may make ${plural(page.limits.requests_per_s, "request")} a second${page.limits.bytes_per_s ? `, of ${size(page.limits.bytes_per_s)}` : ""}.</p>`}
      <//>`}<//>
  <//>`;
}
