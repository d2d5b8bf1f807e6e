// Routers: drawn as a graph of topics, with the lag on the edges and cycles marked; creating and deleting.

import { BEGINS, Badge, Card, Confirm, Delete, Do, Empty, Figures, Loaded, Page, Rest, Search, Table, To, call, count, cut, filterOf, html, link, may, names, numbers, useFields, useGet, useMemo, useState, visible } from "../kit.js";
import { layers } from "../layers.js";

const DRAWN = 150;
const WIDTH = 190, HEIGHT = 34, ACROSS = 300, DOWN = 66;

export function Routers({ address }) {
  const [, router] = address.parts;
  const [prefix, setPrefix] = useState("");
  const [creating, setCreating] = useState(false);
  const poll = useGet("routers", { prefix, page_size: 500 });
  if (router !== undefined) return html`<${One} name=${router} />`;
  return html`<${Page} title="Routers" actions=${may("admin") && html`<${Do} class="primary" onClick=${() => setCreating(true)}>Create a router<//>`}>
    <${Search} label="Name begins with" value=${prefix} set=${setPrefix} />
    <${Loaded} poll=${poll}>${(page) => page.routers.length === 0 ? html`<${Card}><${Empty} title="There is no router." command="topics router create orders-archive orders archive">A router copies the records of one topic to another.<//><//>` : html`
      ${page.routers.length <= DRAWN ? html`<${Drawing} routers=${page.routers} />` : html`<p class="foot">A drawing is made of at most ${DRAWN} routers: type the beginning of a name.</p>`}
      <${Table} label="Routers" rows=${page.routers} rowKey=${(one) => one.router} columns=${[
        names("Router", "router", "routers"), names("From", "source", "topics", true), names("To", "dest", "topics", true),
        numbers("Lag", "lag"), numbers("Copies", "forwarded_total"),
      ]} />
      <${Rest} page=${page} rows=${page.routers} />`}<//>
    ${creating && html`<${Create} close=${() => (setCreating(false), poll.now())} />`}
  <//>`;
}

/** Topics as boxes in columns, routers as lines between them. */
function Drawing({ routers }) {
  const shape = routers.map((one) => `${one.source} ${one.dest}`).join();
  const { places, columns, rows, back } = useMemo(() => layers(routers.map((one) => [one.source, one.dest])), [shape]);
  const at = (topic) => ({ x: 10 + places.get(topic).column * ACROSS, y: 26 + places.get(topic).row * DOWN });
  const width = 20 + (columns - 1) * ACROSS + WIDTH, height = 46 + rows * DOWN;
  const cycles = routers.filter((_, i) => back.has(i));
  return html`<${Card} title="From topic to topic">
    <div class="draw" tabindex="0" role="region" aria-label="Drawing of the routers"><svg viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} role="group" aria-label=${`${routers.length} routers between ${places.size} topics. ${cycles.length > 0 ? `In cycles: ${cycles.map((one) => one.router).join(", ")}.` : ""} The table below has them all.`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="tip" /></marker></defs>
      ${routers.map((one, i) => {
        const from = at(one.source), to = at(one.dest), isBack = back.has(i);
        const [x1, y1, x2, y2] = isBack ? [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y + HEIGHT] : [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
        const bend = Math.max(40, Math.abs(x2 - x1) / 2.2);
        // The point of a curve at 0.6 of its way.
        const along = (a, b, c, d) => 0.064 * a + 0.288 * b + 0.432 * c + 0.216 * d;
        const path = isBack ? `M${x1} ${y1}C${x1} ${y1 + 22} ${x2} ${y2 + 22} ${x2} ${y2 + 3}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`;
        return html`<g key=${one.router} class=${isBack ? "edge cycle" : one.lag > 0 ? "edge behind" : "edge"}>
          <path d=${path} marker-end="url(#arrow)" /><text x=${isBack ? (x1 + x2) / 2 : along(x1, x1 + bend, x2 - bend, x2)} y=${isBack ? Math.max(y1, y2) + 27 : along(y1, y1, y2, y2) - 5} text-anchor="middle">${isBack ? "cycle, " : ""}lag ${count(one.lag)}</text></g>`;
      })}
      ${[...places.keys()].map((topic) => html`<a key=${topic} href=${link("topics", topic)} class="node"><title>${topic}</title>
        <rect x=${at(topic).x} y=${at(topic).y} width=${WIDTH} height=${HEIGHT} rx="7" /><text x=${at(topic).x + 12} y=${at(topic).y + 21.5}>${cut(topic, 22)}</text></a>`)}
    </svg></div><//>`;
}

function One({ name }) {
  const [deleting, setDeleting] = useState(false);
  const poll = useGet(["routers", name]);
  return html`<${Page} title=${name} kind="router" actions=${may("delete", name) && html`<${Do} class="danger" onClick=${() => setDeleting(true)}>Delete<//>`}>
    <${Loaded} poll=${poll}>${(one) => html`<${Card}><${Figures} items=${[
      ["From", html`<${To} at=${["topics", one.source]} />`], ["To", html`<${To} at=${["topics", one.dest]} />`],
      ["Lag", one.lag], ["Copies", one.forwarded_total], ["Position", one.cursor_seq], ["Guarantee", one.guarantee.replaceAll("_", " ")],
      ["Keeps tags", one.preserve_tag ? "yes" : "no"], ["Keeps nodes", one.preserve_node ? "yes" : "no"], one.allow_cycle && ["Cycles", html`<${Badge} kind="warn">allowed<//>`],
      one.filter && ["Filter", html`<code>${visible(JSON.stringify(one.filter))}</code>`],
    ]} /><//>`}<//>
    ${deleting && html`<${Delete} what="router" name=${name} path=${["routers", name]} then="#/routers" close=${() => setDeleting(false)}>No more records are copied. The copies that it has made stay.<//>`}
  <//>`;
}

function Create({ close }) {
  const { values: fields, text, choice } = useFields({ name: "", source: "", dest: "", filter: "", from: "tail", guarantee: "at_least_once", allow_cycle: "false" });
  const run = async () => {
    const { name, source, dest, from, guarantee } = fields;
    const body = { source, dest, from, guarantee, allow_cycle: fields.allow_cycle === "true" };
    if (fields.filter.trim()) body.filter = await filterOf(fields.filter);
    await call("PUT", ["routers", name || `${source}>${dest}`], { body });
  };
  return html`<${Confirm} title="Create a router" action="Create" kind="primary" ready=${fields.source !== "" && fields.dest !== ""} close=${close} run=${run}>
    <div class="fields">${text("source", "From", { help: "A topic that exists." })}${text("dest", "To", { help: "It is made if it is missing." })}
      ${text("name", "Name", { placeholder: fields.source && fields.dest ? `${fields.source}>${fields.dest}` : "" })}${text("filter", "Filter", { class: "mono", help: `Only records that match, such as tag ~ "eu:*".` })}
      ${choice("from", "Begins", BEGINS)}${choice("guarantee", "Guarantee", [["at_least_once", "at least once"], ["exactly_once", "exactly once"]])}
      ${choice("allow_cycle", "May close a cycle", [["false", "no"], ["true", "yes"]])}</div><//>`;
}
