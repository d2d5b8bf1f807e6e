// Deleting records by seq, time or tag; the daemon counts them before.

import { Card, Confirm, Do, NUMBER, Trouble, call, count, html, plural, useAction, useFields, useState } from "../kit.js";

const whole = (text) => /^\d+$/.test(text);

function selectionOf({ before, after, time, tag }) {
  const body = {};
  if (whole(before)) body.before_seq = Number(before);
  if (whole(after)) body.after_seq = Number(after);
  if (time) body.before_ts = new Date(time).getTime();
  if (tag) body.match = tag.endsWith("*") ? ["tag", "Glob", tag] : ["tag", "Eq", tag];
  return body;
}

export function DeleteRecords({ topic, state, done }) {
  const [counted, setCounted] = useState(null);
  const [asking, setAsking] = useState(false);
  const [deleted, setDeleted] = useState(null);
  const action = useAction();
  const { values: fields, text } = useFields({ before: "", after: "", time: "", tag: "" }, () => (setCounted(null), setDeleted(null)));
  const body = selectionOf(fields);
  const chosen = Object.keys(body).length > 0;
  const look = async (event) => {
    event.preventDefault();
    if (!chosen) return;
    const answer = await action.run(() => call("POST", ["topics", topic, "delete"], { body: { ...body, dry_run: true } }));
    if (answer) setCounted(answer.deleted);
  };
  const run = async () => {
    const answer = await call("POST", ["topics", topic, "delete"], { body });
    setDeleted(answer.deleted);
    setCounted(null);
    done();
  };
  return html`<${Card} title="Delete records">
    <form onSubmit=${look}>
      <p>Records that fulfil all conditions are deleted. Their seqs are never used again, and readers are not told.</p>
      <div class="fields">${text("before", "Seq below", { ...NUMBER, placeholder: String(state.head_seq + 1) })}${text("after", "Seq above", NUMBER)}
        ${text("time", "Older than", { type: "datetime-local" })}${text("tag", "Tag", { help: "Ending in *: all tags that begin so." })}</div>
      <${Trouble} error=${action.error} />
      <footer class="form-foot"><span role="status">${counted !== null ? `${plural(counted, "record")} would be deleted.` : deleted !== null ? `${plural(deleted, "record")} deleted.` : ""}</span>
        <button disabled=${!chosen || action.busy}>Count them</button>
        <${Do} class="danger" disabled=${!counted} onClick=${() => setAsking(true)}>Delete ${counted ? count(counted) : "them"}<//></footer>
    </form>
    ${asking && html`<${Confirm} title="Delete records" action=${`Delete ${plural(counted, "record")}`} run=${run} close=${() => setAsking(false)}>
      <p>${plural(counted, "record")} of <b class="name">${topic}</b> would be deleted. This cannot be undone.</p><//>`}
  <//>`;
}
