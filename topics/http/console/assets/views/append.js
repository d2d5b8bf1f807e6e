// Appending a record by hand.

import { Card, Command, Field, NUMBER, Trouble, call, count, html, useAction, useFields, useState } from "../kit.js";

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The JSON of an append. `data` goes as it was typed: the daemon keeps it byte for byte. Raises SyntaxError. */
function bodyOf({ data, tag, node, meta, delay, priority }, isQueue) {
  JSON.parse(data);
  const rest = {};
  if (tag) rest.tag = tag;
  if (node) rest.node = node;
  if (meta.trim()) rest.meta = JSON.parse(meta);
  if (isQueue && delay) rest.delay_ms = Number(delay);
  if (isQueue && priority) rest.priority = Number(priority);
  const more = JSON.stringify(rest).slice(1, -1);
  return `{"records":[{"data":${data.trim()}${more ? `,${more}` : ""}}],"create":false}`;
}

export function Append({ topic, state, done }) {
  const { values: record, text, own } = useFields({ data: "{}", tag: "", node: "", meta: "", delay: "", priority: "" });
  const [appended, setAppended] = useState(null);
  const action = useAction();
  const isQueue = state.type === "queue";
  let body = null, mistake = null;
  try {
    body = bodyOf(record, isQueue);
  } catch (error) {
    mistake = error.message;
  }
  const submit = async (event) => {
    event.preventDefault();
    if (body === null) return;
    const answer = await action.run(() => call("POST", ["topics", topic], { body }));
    if (answer) {
      setAppended(answer.first_seq);
      done();
    }
  };
  return html`<${Card} title=${isQueue ? "Append a job" : "Append a record"}>
    <form onSubmit=${submit}>
      <${Field} label="Data" help="Any JSON." error=${mistake}>${(field) => html`<textarea ...${field} rows="6" class="code" spellcheck=${false} value=${record.data}
        onInput=${(event) => own("data").set(event.target.value)}></textarea>`}<//>
      <div class="fields">${text("tag", "Tag")}${text("node", "Node", { help: "Who wrote it." })}${text("meta", "Meta", { help: `An object of texts, such as {"trace": "a"}.` })}
        ${isQueue && [text("delay", "Delay (ms)", NUMBER), text("priority", "Priority", NUMBER)]}</div>
      <${Trouble} error=${action.error} />
      <footer class="form-foot"><span role="status">${appended !== null && `Appended as seq ${count(appended)}.`}</span>
        <button class="primary" disabled=${body === null || action.busy}>Append</button></footer>
    </form>
    ${body !== null && html`<${Command} text=${`curl ${location.origin}/v0/topics/${topic} -H 'content-type: application/json' -d ${quoted(body)}`} />`}
  <//>`;
}
