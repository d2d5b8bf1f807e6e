// The newest record of each tag: a topic as a table whose keys are tags.

import { Empty, Loaded, Opener, Search, Table, html, numbers, shortTime, time, useGet, usePages, useState, visible } from "../kit.js";
import { brief } from "../json_tree.js";
import { Detail } from "./records.js";

export function Latest({ topic }) {
  const [prefix, setPrefix] = useState("");
  const [open, setOpen] = useState(null);
  const { cursor, first, buttons } = usePages();
  // In a list, so that an empty prefix is sent too.
  const poll = useGet(["topics", topic, "latest"], { prefix: [prefix], cursor, page_size: 100, touch: false }, 3000, true);
  const chosen = poll.data?.records.find((record) => record.$seq === open);
  return html`<${Search} label="Tag begins with" value=${prefix} set=${(text) => (setPrefix(text), first())} />
    <${Loaded} poll=${poll}>${(page) => html`<div class="split">
      <${Table} label="Latest by tag" class="jobs" rows=${page.records} rowKey=${(record) => record.$tag} empty=${html`<${Empty} title="No record has such a tag." command=${`topics append ${topic} --tag ACME 12.5`} />`} columns=${[
        { title: "Tag", class: "name nowrap", cell: (record) => html`<${Opener} seq=${record.$seq} open=${open} set=${setOpen}>${visible(record.$tag)}<//>` },
        numbers("Seq", (record) => record.$seq),
        { title: "Time", class: "nowrap wide", cell: (record) => html`<span title=${time(record.$ts)}>${shortTime(record.$ts)}</span>` },
        { title: "Data", class: "code line", cell: (record) => brief(record.data) },
      ]} />
      ${chosen && html`<${Detail} topic=${topic} record=${chosen} close=${() => setOpen(null)} key=${open} />`}</div>
      ${buttons(page)}`}<//>`;
}
