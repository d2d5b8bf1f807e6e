// Moving dead letters back to their queues, with a filter, and how far that has come.

import { Badge, Card, Confirm, Do, Figures, Loaded, NUMBER, Trouble, call, count, filterOf, html, useAction, useFields, useGet, useState, visible } from "../kit.js";

export function Redrive({ from, dead, done }) {
  const parts = ["topics", dead, "redrive"];
  const { values: fields, text } = useFields({ filter: `meta."$dead_letter_from" = ${JSON.stringify(from)}`, max: "", rate: "" });
  const [asking, ask] = useState(false);
  const action = useAction();
  const poll = useGet(parts, {}, 1500);
  const isRunning = poll.data?.state === "running";
  const start = async () => {
    const body = {};
    if (fields.filter.trim()) body.filter = await filterOf(fields.filter);
    if (fields.max) body.max = Number(fields.max);
    if (fields.rate) body.rate = { jobs: Number(fields.rate), per_ms: 1000 };
    await call("POST", parts, { body });
    poll.now();
    done();
  };
  const stop = () => action.run(async () => (await call("DELETE", parts), poll.now()));
  return html`<${Card} title=${`Dead letters in ${dead}`} actions=${isRunning
      ? html`<${Do} class="danger" onClick=${stop}>Stop<//>` : html`<${Do} onClick=${() => ask(true)}>Redrive…<//>`}>
    <${Trouble} error=${action.error} />
    <${Loaded} poll=${poll}>${(now) => html`
      <div role="status"><${Figures} items=${[["Redrive", html`<${Badge} kind=${{ running: "queue", done: "good", failed: "bad" }[now.state] ?? ""}>${now.state}<//>`], ["Moved", now.moved], ["Left", now.left],
        ...Object.entries(now.reasons).map(([reason, number]) => [reason.replace("_", " "), count(number)])]} /></div>
      ${now.error && html`<p class="notice bad">${visible(now.error.message ?? now.error)}</p>`}`}<//>
    ${asking && html`<${Confirm} title="Redrive" action="Move them back" close=${() => ask(false)} run=${start}>
      <p>Dead letters become jobs of the queue or group that they came from, each exactly once.</p>
      ${text("filter", "Filter", { class: "mono", help: "Empty: all letters, also those of other queues." })}${text("max", "Most", { ...NUMBER, help: "How many are moved. Empty: all." })}
      ${text("rate", "Letters per second", { ...NUMBER, help: "Empty: as fast as it goes." })}<//>`}
  <//>`;
}
