// JSON as people read it: folded, in small pieces. Data is text here, never markup.

import { html, useState } from "./vendor/htm-preact.js";
import { ExactNumber } from "./api.js";
import { count, cut, visible } from "./format.js";

const CHILDREN = 100;
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
  return html`<div class="json code" role="group" aria-label="Data"><${Node} value=${value} open=${open} /></div>`;
}

function Node({ name, value, open }) {
  const isFolder = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  const key = name === undefined ? null : html`<span class="json-key">${visible(JSON.stringify(cut(name, STRING)))}</span>: `;
  return isFolder ? html`<${Folder} label=${key} value=${value} open=${open} />` : html`<div class="json-line">${key}<${Leaf} value=${value} /></div>`;
}

function Folder({ label, value, open }) {
  const isList = Array.isArray(value);
  const names = isList ? value : Object.keys(value);
  const [isOpen, set] = useState(open > 0 && names.length > 0);
  const [shown, setShown] = useState(CHILDREN);
  const [before, after] = isList ? "[]" : "{}";
  if (names.length === 0) return html`<div class="json-line">${label}${before}${after}</div>`;
  return html`<div class="json-folder">
    <div class="json-line"><button type="button" class="fold" aria-expanded=${isOpen} onClick=${() => set(!isOpen)}>
      <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span><span class="sr">${isOpen ? "Fold" : "Unfold"}</span></button>${label}${before}
      ${!isOpen && html`<span class="soft">${count(names.length)} ${isList ? "items" : "fields"}</span>${after}`}</div>
    ${isOpen && html`<div class="json-children">
      ${(isList ? value.slice(0, shown).map((one, i) => [i, undefined, one]) : names.slice(0, shown).map((name) => [name, name, value[name]]))
        .map(([key, name, one]) => html`<${Node} key=${key} name=${name} value=${one} open=${open - 1} />`)}
      ${names.length > shown && html`<button type="button" class="small" onClick=${() => setShown(shown + CHILDREN)}>${count(names.length - shown)} more</button>`}
    </div><div class="json-line">${after}</div>`}
  </div>`;
}

function Leaf({ value }) {
  const [shown, set] = useState(STRING);
  if (value instanceof ExactNumber) return html`<span class="json-number">${value.text}</span>`;
  if (typeof value === "string") {
    const text = visible(JSON.stringify(value.slice(0, shown)));
    return html`<span class="json-string">${value.length > shown ? text.slice(0, -1) : text}</span>${value.length > shown && html`…
      <button type="button" class="small" onClick=${() => set(shown + MORE)}>${count(value.length - shown)} more characters</button>`}`;
  }
  return html`<span class=${typeof value === "number" ? "json-number" : "json-word"}>${String(value)}</span>`;
}
