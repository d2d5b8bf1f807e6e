// The evidence of a topic: its present checkpoint, signed, to be kept where nobody who can write here can change it.

import { Card, Command, Copy, Empty, Figures, Loaded, html, plural, useGet, visible } from "../kit.js";

export function Evidence({ topic }) {
  const poll = useGet(["topics", topic, "evidence"], {}, 5000);
  return html`<${Loaded} poll=${poll}>${(tree) => tree.size === 0 ? html`<${Empty} title="The tree covers no record yet." />`
    : html`<${Card} title="Checkpoint" actions=${html`<${Copy} text=${tree.note} label="Copy the checkpoint" />`}>
    <${Figures} items=${[["Covers", plural(tree.size, "seq")], ["From seq", tree.start_seq], ["Epoch", tree.epoch]]} />
    <pre class="code" tabindex="0">${tree.note.split("\n").map(visible).join("\n")}</pre>
    <p>It proves what the topic holds now, once it is kept elsewhere. <code>topics verify --against FILE</code> compares the files with it.</p>
    <${Command} text=${`topics evidence checkpoint ${topic}`} />
  <//>`}<//>`;
}
