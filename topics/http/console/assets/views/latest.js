// The newest record of each tag: a topic as a table whose keys are tags.

import { html, useState } from "../vendor/htm-preact.js";
import { call } from "../api.js";
import { shortTime, time, visible } from "../format.js";
import { brief } from "../json_tree.js";
import { usePoll } from "../live.js";
import { Do, Empty, Loaded, Search, Table, numbers, usePages } from "../parts.js";
import { Detail } from "./records.js";

export function Latest({ topic }) {
  const [prefix, setPrefix] = useState("");
  const [open, setOpen] = useState(null);
  const { cursor, first, buttons } = usePages();
  const wanted = { prefix: [prefix], cursor, page_size: 100, touch: false }; // in a list, so that an empty prefix is sent too
  const poll = usePoll((signal) => call("GET", ["topics", topic, "latest"], { query: wanted, exact: true, signal }), [topic, prefix, cursor], 3000);
  const chosen = poll.data?.records.find((record) => record.$seq === open);
  return html`<${Search} label="Tag begins with" value=${prefix} set=${(text) => (setPrefix(text), first())} />
    <${Loaded} poll=${poll}>${(page) => html`<div class="split">
      <${Table} label="Latest by tag" class="jobs" rows=${page.records} rowKey=${(record) => record.$tag} empty=${html`<${Empty} title="No record has such a tag." command=${`topics append ${topic} --tag ACME 12.5`} />`} columns=${[
        { title: "Tag", class: "name nowrap", cell: (record) => html`<${Do} class="row-link" aria-expanded=${open === record.$seq} onClick=${() => setOpen(open === record.$seq ? null : record.$seq)}>${visible(record.$tag)}<//>` },
        numbers("Seq", (record) => record.$seq),
        { title: "Time", class: "nowrap wide", cell: (record) => html`<span title=${time(record.$ts)}>${shortTime(record.$ts)}</span>` },
        { title: "Data", class: "code line", cell: (record) => brief(record.data) },
      ]} />
      ${chosen && html`<${Detail} topic=${topic} record=${chosen} close=${() => setOpen(null)} key=${open} />`}</div>
      ${buttons(page)}`}<//>`;
}
