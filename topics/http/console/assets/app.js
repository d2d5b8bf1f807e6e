// The console: the frame of the page, addresses and views, the key, keys of the keyboard, and a daemon that is away.

import { render } from "./vendor/htm-preact.js";
import { figures, remember } from "./history.js";
import { Busy, Dialog, Do, Elsewhere, Text, Trouble, daemon, hasKey, html, isCurrent, link, loadRights, may, percent, plural, useEffect, useKey, useObserved, usePoll, useState, visible } from "./kit.js";
import { Overview } from "./views/overview.js";
import { Topics } from "./views/topics.js";
import { Topic } from "./views/topic.js";
import { Queues } from "./views/queues.js";
import { Consumers } from "./views/consumers.js";
import { Routers } from "./views/routers.js";
import { Storage } from "./views/storage.js";
import { Clients } from "./views/clients.js";

const VIEWS = {
  "": ["Overview", Overview, "o"],
  topics: ["Topics", Topics, "t"],
  queues: ["Queues and groups", Queues, "q"],
  consumers: ["Consumers", Consumers, "c"],
  routers: ["Routers", Routers, "r"],
  storage: ["Storage", Storage, "s"],
  // Not for keys with prefixes.
  clients: ["Clients", Clients, "l", "admin"],
};

/** The present address: its parts, and its query. */
function useAddress() {
  const read = () => {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    let parts = [];
    try {
      parts = path.split("/").filter(Boolean).map(decodeURIComponent);
    } catch {
      // A broken address leads to the overview.
    }
    return { parts, query: new URLSearchParams(query), path };
  };
  const [address, set] = useState(read);
  useEffect(() => {
    const look = () => set(read());
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  useEffect(() => {
    document.getElementById("title")?.focus({ preventScroll: true });
    document.getElementById("main")?.scrollTo(0, 0);
  }, [address.path]);
  return address;
}

function App() {
  const address = useAddress();
  const state = useObserved(daemon);
  const [help, setHelp] = useState(false);
  const poll = usePoll(state.rights !== null && may("read") ? figures : null, [state.rights !== null], 2000);
  useEffect(() => {
    if (poll.data !== null) remember(poll.data);
  }, [poll.data]);
  useEffect(() => {
    loadRights().catch(() => {});
  }, []);
  useShortcuts(setHelp);
  const [first = ""] = address.parts;
  const [, View] = first === "topics" && address.parts.length > 1 ? ["Topic", Topic] : (VIEWS[first] ?? VIEWS[""]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the contents</a>
    <${Side} current=${first} figures=${poll.data} help=${() => setHelp(true)} />
    <main id="main" tabindex="-1" data-address=${address.path}>
      <${Banner} state=${state} figures=${poll.data} />
      ${state.rights === null
        ? state.askKey ? null : html`<${Busy} what="Asking the daemon" />`
        : html`<${View} address=${address} figures=${poll.data} key=${address.parts.slice(0, 2).join()} />`}
    </main>
    ${state.askKey && html`<${AskKey} wrong=${state.badKey} />`}
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

function Side({ current, figures, help }) {
  const { rights, up } = useObserved(daemon);
  const [theme, setTheme] = useState(localStorage.getItem("topics.theme") ?? "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("topics.theme", theme);
    dispatchEvent(new Event("theme"));
  }, [theme]);
  const next = { auto: "dark", dark: "light", light: "auto" }[theme];
  return html`<header class="side">
    <a class="brand" href="#/"><img src="console/icon.svg" alt="" width="26" height="26" /><span>topics</span></a>
    <nav aria-label="Views"><ul>${Object.entries(VIEWS).filter(([, [, , , scope]]) => rights?.scopes.includes(scope ?? "read") && !(scope && rights.prefixes.length > 0)).map(([path, [name]]) => html`<li key=${path}>
      <a href=${path ? link(path) : "#/"} ...${isCurrent(path === current)}>${name}</a></li>`)}</ul></nav>
    <div class="side-foot">
      <span class="live"><span class="dot ${up ? "good" : "bad"}" aria-hidden="true"></span>${up ? (figures ? `topics ${figures.version}` : "connected") : "no answer"}</span>
      <div class="side-buttons">
        <${Do} class="small quiet" onClick=${() => setTheme(next)} aria-label=${`Colours: ${theme}. Change to ${next}`}>${{ auto: "◐", dark: "●", light: "○" }[theme]} ${theme}<//>
        <${Do} class="small quiet" onClick=${help} aria-label="Keys of the keyboard">?<//>
        ${rights?.has_keys && html`<${Do} class="small quiet" onClick=${() => useKey(null).catch(() => {})}>Forget the key<//>`}
      </div>
    </div>
  </header>`;
}

/** What is wrong, in words. */
function Banner({ state, figures }) {
  const said = [];
  if (!state.up) said.push(["bad", "The daemon does not answer. This page goes on by itself when it does."]);
  else if (state.replay !== null) said.push(["warn", `The daemon is starting: ${percent(state.replay)} of its log is replayed.`]);
  else if (state.stopping) said.push(["warn", state.stopping === "not_owner" ? `Another daemon owns the bucket, or may: ${state.owner ?? "it is not known where"}. This one changes nothing.` : "The daemon is stopping."]);
  if (state.up && state.isStandby) said.push(standbyOf(figures?.standby));
  else if (state.up && figures?.read_only) said.push(["bad", readOnlyFor(figures)]);
  return html`<div class="banners" role="status" aria-live="polite">${said.map(([kind, text, owner]) => html`<p class="notice ${kind}" key=${text}>${text}${owner && html` Its owner: <${Elsewhere} url=${owner} />`}</p>`)}</div>`;
}

/** Why appends are refused. */
function readOnlyFor({ disk, failed_shards: failed }) {
  if (disk.shortage) return `Read-only: ${disk.shortage}. Appends are refused, reads go on.`;
  return failed ? `Read-only: ${plural(failed, "shard")} of the log failed: no appends there until a restart. Reads go on.` : "The disk has no room: some appends are refused. Reads go on.";
}

/** A standby in a sentence. */
function standbyOf(seen) {
  const what = "This is a standby: it shows what the owner of the bucket has put there, and changes nothing.";
  if (!seen || seen.state === "following") return ["", what, seen?.owner];
  const wait = seen.state === "opening" ? "has not heard of the bucket yet" : `waits: ${visible(seen.problem) || "the bucket does not answer"}`;
  return ["warn", `${what} It ${wait}.`, seen.owner];
}

function AskKey({ wrong }) {
  const [text, set] = useState("");
  const [error, setError] = useState(null);
  const submit = () => {
    if (text.trim() === "") return;
    setError(null);
    useKey(text.trim()).catch(setError);
  };
  return html`<${Dialog} title="This daemon asks for a key" submit=${submit}>
    <div class="dialog-body">
      <p>The key stays in this tab and is forgotten when the tab is closed.</p>
      <${Text} label="API key" type="password" value=${text} set=${set} error=${wrong && hasKey() ? "The daemon does not know this key." : null} />
      <${Trouble} error=${error} />
    </div>
    <footer><button class="primary">Use this key</button></footer>
  <//>`;
}

const KEYS = [["/", "search"], ["?", "this list"], ["g, then o t q c r s l", "go to a view"], ["↑ ↓", "move between rows"], ["Enter", "open"], ["Esc", "close"], ["p", "pause or go on with live records"]];

function Help({ close }) {
  return html`<${Dialog} title="Keys" close=${close}>
    <div class="dialog-body"><dl class="keys">${KEYS.map(([key, text]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl></div>
    <footer><${Do} class="primary" onClick=${close}>Close<//></footer>
  <//>`;
}

/** `/` searches, `?` lists the keys, `g` and a letter go to a view. Not while somebody types. */
function useShortcuts(setHelp) {
  useEffect(() => {
    let going = 0;
    const press = (event) => {
      const typing = event.target.closest?.("input, textarea, select, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        const search = document.querySelector("[data-search]");
        if (search) {
          search.focus();
          search.select();
        } else location.hash = "#/topics";
      } else if (event.key === "?") setHelp(true);
      else if (event.key === "g") {
        going = event.timeStamp;
        return;
      } else if (event.timeStamp - going < 1500 && going > 0) {
        const found = Object.entries(VIEWS).find(([, [, , letter]]) => letter === event.key);
        if (found) location.hash = `#/${found[0]}`;
      } else if (event.key === "p") document.querySelector("[data-pause]")?.click();
      else return;
      going = 0;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

document.documentElement.dataset.theme = localStorage.getItem("topics.theme") ?? "auto";
render(html`<${App} />`, document.getElementById("app"));
