// The parts that views are made of: pages, tables, fields, dialogs, and what is shown when there is nothing.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { call, daemon, may } from "./api.js";
import { count, visible } from "./format.js";

/** A page: its title, what stands beside it, and its contents. The title gets the focus when the address changes. */
export function Page({ title, kind, actions, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${kind ? `${kind} ` : ""}${visible(title)} · topics`;
  }, [title, kind]);
  return html`<div class="page">
    <header class="page-head">
      <h1 ref=${heading} tabindex="-1" id="title">${kind && html`<span class="kind">${kind} </span>`}${visible(title)}</h1>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}

/** A button that does something, and submits no form. */
export const Do = (props) => html`<button type="button" ...${props} />`;

export function Card({ title, actions, children, class: name = "" }) {
  return html`<section class="card ${name}" aria-label=${title}>
    ${title && html`<header class="card-head"><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>`}
    ${children}
  </section>`;
}

export const Busy = ({ what = "Loading" }) => html`<p class="state" role="status"><span class="spinner" aria-hidden="true"></span>${what}…</p>`;

/** What to do where there is nothing yet, with a command that can be copied; a standby does nothing. */
export function Empty({ title, children, command }) {
  return html`<div class="state">
    <p class="lead">${title}</p>
    ${!(command && daemon.value.isStandby) && html`${children && html`<p>${children}</p>`}${command && html`<${Command} text=${command} />`}`}
  </div>`;
}

export function Trouble({ error, retry }) {
  if (!error || error.status === 401) return null;
  return html`<div class="notice bad" role="alert">
    <span>${visible(error.message)}</span>
    ${error.detail?.missing && html` <span>Missing: ${error.detail.missing.join(", ")}.</span>`}
    ${retry && html`<${Do} class="small" onClick=${retry}>Try again<//>`}
  </div>`;
}

/** The answer of a poll: its contents, or why there are none. */
export function Loaded({ poll, children }) {
  if (poll.data === null) return poll.error ? html`<${Trouble} error=${poll.error} retry=${poll.now} />` : html`<${Busy} />`;
  return html`${poll.error?.status > 0 && html`<${Trouble} error=${poll.error} />`}${children(poll.data)}`;
}

export function Command({ text }) {
  return html`<div class="command"><code tabindex="0">${text}</code><${Copy} text=${text} /></div>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, set] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => set(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    const value = typeof text === "function" ? text() : text;
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      const area = document.createElement("textarea");
      area.value = value;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    set(true);
  };
  return html`<${Do} class="small quiet" onClick=${copy}>${done ? "Copied" : label}<//>`;
}

export const Name = ({ children }) => html`<span class="name" title=${visible(String(children))}>${visible(String(children))}</span>`;

/** A link to the view at these parts of an address: its text is the last one if there is no other. */
export const To = ({ at, children }) => html`<a href=${link(...at)}><${Name}>${children ?? at.at(-1)}<//></a>`;

/** Where another daemon answers: a link to its console. Only an address of the web is made a link. */
export const Elsewhere = ({ url }) => html`<span class="name">${/^https?:\/\//.test(url) ? html`<a href=${`${url}/console`}>${visible(url)}</a>` : visible(url ?? "")}</span>`;

/** The button of a row that opens what belongs to this seq, and closes it. */
export const Opener = ({ seq, open, set, children }) => html`<${Do} class="row-link" aria-expanded=${open === seq} onClick=${() => set(open === seq ? null : seq)}>${children ?? count(seq)}<//>`;

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

/** Figures with their names, as a list of definitions: `[name, a number or what is shown, a hint]`. */
export function Figures({ items }) {
  return html`<dl class="figures">
    ${items.filter(Boolean).map(([name, value, hint]) => html`<div key=${name} title=${hint}><dt>${name}</dt><dd>${typeof value === "number" || value == null ? count(value) : value}</dd></div>`)}
  </dl>`;
}

// It is not in the document yet.
const show = (one) => one && setTimeout(() => one.scrollIntoView({ block: "nearest" }));

/** What a link has that leads to the present view: on a narrow screen the row of links is scrolled there. */
export const isCurrent = (is) => is && { "aria-current": "page", ref: show };

export function Tabs({ items, current }) {
  return html`<nav class="tabs" aria-label="Parts of this page"><ul>
    ${items.filter(Boolean).map(([name, address, text]) => html`<li key=${name}>
      <a href=${address} ...${isCurrent(name === current)}>${text}</a></li>`)}
  </ul></nav>`;
}

/** The parts of a topic that the key may see, whichever view has them. */
export const TopicTabs = ({ topic, type, current, hasEvidence }) => html`<${Tabs} current=${current} items=${[
  ["records", link("topics", topic), "Records"],
  type === "queue" && ["jobs", link("queues", topic), "Jobs"],
  type === "log" && ["latest", link("topics", topic, "latest"), "Latest by tag"],
  may("write", topic) && ["append", link("topics", topic, "append"), "Append"],
  ["config", link("topics", topic, "config"), "Configuration"],
  type === "log" && ["groups", link("queues", topic), "Groups"],
  type === "log" && ["consumers", `${link("consumers")}?prefix=${encodeURIComponent(topic)}`, "Consumers"],
  hasEvidence && ["evidence", link("topics", topic, "evidence"), "Evidence"],
  may("delete", topic) && ["delete", link("topics", topic, "delete"), "Delete records"],
]} />`;

const titles = (columns) => columns.map((column) => html`<th key=${column.title} scope="col" class=${column.class}>${column.title}</th>`);

const cells = (columns, row) => columns.map((column, i) => html`<${i === 0 ? "th" : "td"} scope=${i === 0 ? "row" : undefined} key=${column.title} class=${column.class}>${column.cell(row)}<//>`);

/** A table. A column is `{title, cell(row), class}`: `right` for numbers, `wide` if a narrow screen leaves it out. */
export function Table({ label, columns, rows, rowKey, empty, class: name = "" }) {
  if (rows.length === 0 && empty) return empty;
  const shown = columns.filter(Boolean);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${label}`}><table class=${name}>
    <thead><tr>${titles(shown)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${rowKey(row)}>${cells(shown, row)}</tr>`)}</tbody>
  </table></div>`;
}

/** A table of any length: only the rows in view are in the document. `onEnd` is called near the last row, `onView` with
 *  the range in view. Up and down move between rows. */
export function LongTable({ label, columns, rows, total, rowKey, rowHeight = 40, onEnd, onView, selected, class: name = "" }) {
  const box = useRef(null);
  const [view, set] = useState({ top: 0, height: 600 });
  const shown = columns.filter(Boolean);
  useLayoutEffect(() => {
    const look = () => box.current && set({ top: box.current.scrollTop, height: box.current.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    look();
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - 8);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + 8);
  useEffect(() => {
    onView?.(first, last);
    if (onEnd && last >= rows.length - 20) onEnd();
  }, [first, last, rows.length]);
  const move = (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const row = event.target.closest("tr");
    if (row === null || event.target.matches("input, select, textarea")) return;
    const other = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
    const next = other?.querySelector("a, button");
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  return html`<div class="long scroll ${name}" ref=${box} tabindex="0" role="region" aria-label=${`Table: ${label}`}
      onScroll=${() => set({ top: box.current.scrollTop, height: box.current.clientHeight })} onKeyDown=${move}>
    <table aria-rowcount=${(total ?? rows.length) + 1}>
      <thead><tr aria-rowindex="1">${titles(shown)}</tr></thead>
      <tbody>
        ${first > 0 && html`<tr class="gap" key="before" aria-hidden="true" style=${{ height: `${first * rowHeight}px` }}><td colspan=${shown.length}></td></tr>`}
        ${rows.slice(first, last).map((row, i) => html`<tr key=${rowKey(row)} aria-rowindex=${first + i + 2} class=${selected === rowKey(row) ? "selected" : ""}
            style=${{ height: `${rowHeight}px` }}>${cells(shown, row)}</tr>`)}
        ${last < rows.length && html`<tr class="gap" key="after" aria-hidden="true" style=${{ height: `${(rows.length - last) * rowHeight}px` }}><td colspan=${shown.length}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

/** What an input for a number has. */
export const NUMBER = { inputmode: "numeric" };

let fields = 0;

/** A field of a form, with its name, and help that a screen reader reads with it. */
export function Field({ label, help, error, children, class: name = "" }) {
  const id = useRef(`field-${(fields += 1)}`).current;
  const hint = help || error ? `${id}-help` : undefined;
  return html`<div class="field ${name}">
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": hint, "aria-invalid": error ? "true" : undefined })}
    ${hint && html`<p class="help ${error ? "wrong" : ""}" id=${hint}>${error ? visible(error) : help}</p>`}
  </div>`;
}

export function Text({ label, help, error, value, set, type = "text", class: name, ...more }) {
  return html`<${Field} label=${label} help=${help} error=${error} class=${name}>
    ${(own) => html`<input ...${own} ...${more} type=${type} value=${value} autocomplete="off" spellcheck=${false} onInput=${(event) => set(event.target.value)} />`}
  <//>`;
}

/** The field that `/` leads to. */
export const Search = ({ label, value, set, children }) => html`<div class="tools" role="search">
  <${Text} label=${label} value=${value} set=${set} class="grow" data-search type="search" />${children}</div>`;

/** A note below a list that has more than what is shown. */
export const Rest = ({ page, rows }) => page.next_cursor && html`<p class="foot">The first ${count(rows.length)}. Type the beginning of a name to see others.</p>`;

/** A column of numbers, each in a field of its row, or what a function says of the row; a `wide` one is left out on a
 *  narrow screen. */
export const numbers = (title, field, isWide, show = count) => ({
  title, class: `right nowrap${isWide ? " wide" : ""}`, cell: (row) => show(typeof field === "string" ? row[field] : field(row)),
});

/** A column of names, each in a field of its row; links if they have a view. */
export const names = (title, field, view, isWide) => ({
  title, class: isWide ? "wide" : "", cell: (row) => (view ? html`<${To} at=${[view, row[field]]} />` : html`<${Name}>${row[field]}<//>`),
});

/** Where there is no topic yet. */
export const NoTopic = ({ children }) => html`<${Empty} title="There is no topic yet." command=${`topics append hello '{"text": "hello"}'`}>An append to a topic that does not exist makes it${children}.<//>`;

/** The pages of a list: the cursor of the present one, and buttons that lead to the others. */
export function usePages() {
  const [cursors, set] = useState([]);
  return {
    cursor: cursors.at(-1), first: () => set([]),
    buttons: (page, more) => html`<div class="pager">${cursors.length > 0 && html`<${Do} class="small" onClick=${() => set(cursors.slice(0, -1))}>Back<//>`}
      ${page.next_cursor && html`<${Do} class="small" onClick=${() => set([...cursors, page.next_cursor])}>More<//>`}${more}</div>`,
  };
}

export function Choice({ label, help, value, set, options, disabled, class: name }) {
  return html`<${Field} label=${label} help=${help} class=${name}>
    ${(own) => html`<select ...${own} disabled=${disabled} value=${value} onChange=${(event) => set(event.target.value)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>`}
  <//>`;
}

/** The fields of a form: their values by name, and what makes inputs and choices of them. `then` is called after a change. */
export function useFields(initial, then) {
  const [values, set] = useState(initial);
  const own = (name) => ({ value: values[name], set: (value) => (set((now) => ({ ...now, [name]: value })), then?.()) });
  return {
    values, own,
    text: (name, label, more) => html`<${Text} label=${label} ...${own(name)} ...${more} />`,
    choice: (name, label, options, more) => html`<${Choice} label=${label} options=${options} ...${own(name)} ...${more} />`,
  };
}

/** A dialog: the browser keeps the focus inside, and Escape closes it. */
export function Dialog({ title, close, children, submit }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    box.current.querySelector("input, select, textarea, footer button")?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${(event) => (event.preventDefault(), close?.())}>
    <form onSubmit=${(event) => (event.preventDefault(), submit?.())}>
      <header class="dialog-head"><h2 id="dialog-title">${title}</h2>
        ${close && html`<${Do} class="quiet icon" aria-label="Close" onClick=${close}>×<//>`}</header>
      ${children}
    </form>
  </dialog>`;
}

/** A question, perhaps with fields, before something is done. With `name`, that has to be typed. */
export function Confirm({ title, name, action, kind = "danger", ready: isReady = true, run, close, children }) {
  const [typed, set] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const ready = isReady && (name === undefined || typed === name);
  const submit = async () => {
    if (!ready || state.busy) return;
    setState({ busy: true, error: null });
    try {
      await run();
      close();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${title} close=${close} submit=${submit}>
    <div class="dialog-body">${children}
      ${name !== undefined && html`<${Text} label=${html`Type <b class="name">${name}</b> to confirm`} value=${typed} set=${set} />`}
      <${Trouble} error=${state.error} /></div>
    <footer><${Do} onClick=${close}>Cancel<//><button class=${kind} disabled=${!ready || state.busy}>${action}</button></footer>
  <//>`;
}

/** The question before something is deleted by its path: its name has to be typed. Then the page goes to `then`. */
export const Delete = ({ what, name, path, then, close, children }) => html`<${Confirm} title=${`Delete the ${what}`} name=${name} action=${`Delete the ${what}`} close=${close}
  run=${async () => (await call("DELETE", path), (location.hash = then))}><p>${children}</p><//>`;

/** Where a group or a router begins. */
export const BEGINS = [["tail", "with records that come from now on"], ["earliest", "with the first record"]];

/** The mark of a part or a series in its colour, a variable of the style sheet. */
export const Dot = ({ color }) => html`<span class="dot" style=${{ background: `var(--${color})` }} aria-hidden="true"></span>`;

/** A bar of parts: `[{name, value, text, color}]`, drawn to scale. */
export function Bar({ parts, label }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return html`<figure class="bar" aria-label=${label}>
    <div class="bar-line" aria-hidden="true">${parts.filter((part) => part.value > 0).map((part) => html`<span key=${part.name}
      title=${`${part.name}: ${part.text}`} style=${{ flexGrow: Math.max(part.value / total, 0.012), background: `var(--${part.color})` }}></span>`)}</div>
    <figcaption><ul>${parts.map((part) => html`<li key=${part.name}><${Dot} color=${part.color} />${part.name} <b>${part.text}</b></li>`)}</ul></figcaption>
  </figure>`;
}

export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
