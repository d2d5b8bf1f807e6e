// JSON as people read it: folded, in small pieces. Data is text here, never markup.

import { Do, ExactNumber, count, cut, html, useState, visible } from "./kit.js";

const CHILDREN = 100;
// Levels of folders: each costs a browser and its screen reader some of their stack.
const DEEPEST = 50;
const STRING = 400;
const MORE = 20_000;

/** The beginning of the JSON of a value, made without making all of it. */
export function brief(value, most = 240) {
  let text = "";
  const add = (piece) => ((text += piece), text.length < most);
  const write = (one) => {
    if (one instanceof ExactNumber) return add(one.text);
    if (typeof one === "string") return add(JSON.stringify(cut(one, most)));
    if (one === null || typeof one !== "object") return add(String(one));
    const isList = Array.isArray(one);
    if (!add(isList ? "[" : "{")) return false;
    let first = true;
    for (const name of isList ? one.keys() : Object.keys(one)) {
      if (!add(`${first ? "" : ", "}${isList ? "" : `${JSON.stringify(cut(name, most))}: `}`) || !write(one[name])) return false;
      first = false;
    }
    return add(isList ? "]" : "}");
  };
  write(value);
  return visible(cut(text, most));
}

export const textOf = (value) => JSON.stringify(value, null, 2);

export function JsonTree({ value, open = 2 }) {
  return html`<div class="json code" role="group" aria-label="Data"><${Node} value=${value} open=${open} depth=${0} /></div>`;
}

function Node({ name, value, open, depth }) {
  const isFolder = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  const key = name === undefined ? null : html`<span class="json-key">${visible(JSON.stringify(cut(name, STRING)))}</span>: `;
  if (isFolder && depth < DEEPEST) return html`<${Folder} label=${key} value=${value} open=${open} depth=${depth} />`;
  return html`<div class="json-line">${key}<${Leaf} value=${value} /></div>`;
}

function Folder({ label, value, open, depth }) {
  const isList = Array.isArray(value);
  const names = isList ? value : Object.keys(value);
  const [isOpen, set] = useState(open > 0 && names.length > 0);
  const [shown, setShown] = useState(CHILDREN);
  const [before, after] = isList ? "[]" : "{}";
  if (names.length === 0) return html`<div class="json-line">${label}${before}${after}</div>`;
  return html`<div>
    <div class="json-line"><${Do} class="fold" aria-expanded=${isOpen} onClick=${() => set(!isOpen)}>
      <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span><span class="sr">${isOpen ? "Fold" : "Unfold"}</span><//>${label}${before}
      ${!isOpen && html`<span class="soft">${count(names.length)} ${isList ? "items" : "fields"}</span>${after}`}</div>
    ${isOpen && html`<div class="json-children">
      ${(isList ? value.slice(0, shown).map((one, i) => [i, undefined, one]) : names.slice(0, shown).map((name) => [name, name, value[name]]))
        .map(([key, name, one]) => html`<${Node} key=${key} name=${name} value=${one} open=${open - 1} depth=${depth + 1} />`)}
      ${names.length > shown && html`<${Do} class="small" onClick=${() => setShown(shown + CHILDREN)}>${count(names.length - shown)} more<//>`}
    </div><div class="json-line">${after}</div>`}
  </div>`;
}

function Leaf({ value }) {
  const [shown, set] = useState(STRING);
  if (value instanceof ExactNumber) return html`<span class="json-number">${value.text}</span>`;
  if (value === null || typeof value === "number" || typeof value === "boolean") return html`<span class=${typeof value === "number" ? "json-number" : "json-word"}>${String(value)}</span>`;
  // What is neither is nested so deeply that it is shown as text.
  const isText = typeof value === "string";
  const whole = isText ? value : JSON.stringify(value);
  const part = whole.slice(0, shown);
  const text = visible(isText ? JSON.stringify(part) : part);
  return html`<span class=${isText ? "json-string" : ""}>${isText && whole.length > shown ? text.slice(0, -1) : text}</span>${whole.length > shown && html`…
    <${Do} class="small" onClick=${() => set(shown + MORE)}>${count(whole.length - shown)} more characters<//>`}`;
}
