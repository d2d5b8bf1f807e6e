// One topic: its state and floors, its records, its configuration, appending and deleting.

import { Badge, Bar, Card, Delete, Do, Figures, Loaded, Page, TopicTabs, Trouble, ago, call, count, daemon, duration, html, may, plural, size, time, useAction, useGet, useState, visible } from "../kit.js";
import { Append } from "./append.js";
import { DeleteRecords } from "./delete_records.js";
import { Evidence } from "./evidence.js";
import { Latest } from "./latest.js";
import { Records } from "./records.js";
import { ConfigFields, patchOf } from "./topic_config.js";

export function Topic({ address }) {
  const [, name, tab = "records"] = address.parts;
  const [deleting, setDeleting] = useState(false);
  const poll = useGet(["topics", name], { touch: false, places: true });
  const kind = poll.data?.type ?? "topic";
  return html`<${Page} title=${name} kind=${kind} actions=${may("delete", name) && poll.data && html`<${Do} class="danger" onClick=${() => setDeleting(true)}>Delete<//>`}>
    <${Loaded} poll=${poll}>${(state) => html`
      <${State} state=${state} />
      <${TopicTabs} topic=${name} type=${state.type} current=${tab} hasEvidence=${state.config.evidence} />
      ${tab === "latest" ? html`<${Latest} topic=${name} />` : tab === "evidence" ? html`<${Evidence} topic=${name} />` : tab === "append" && may("write", name) ? html`<${Append} topic=${name} state=${state} done=${poll.now} />`
        : tab === "config" ? html`<${Config} state=${state} done=${poll.now} />`
        : tab === "delete" && may("delete", name) ? html`<${DeleteRecords} topic=${name} state=${state} done=${poll.now} />`
        : html`<${Records} topic=${name} state=${state} query=${address.query} />`}`}
    <//>
    ${deleting && html`<${Delete} what="topic" name=${name} path=${["topics", name]} then="#/topics" close=${() => setDeleting(false)}>
      Its records, its tags, its consumers and groups, and all routers from and to it are deleted with it. This cannot be undone.<//>`}
  <//>`;
}

/** The seqs of a topic as a bar: gone, and live in which place. */
const PLACES = [["evicted", "evicted", "gone"], ["deleted", "deleted", "holes"], ["between", "deleted or lost between", "holes"], ["cold", "cold segments", "series-3"], ["hot", "segments", "series-1"], ["log", "log only", "unsynced"]];

function State({ state }) {
  const { queue, places } = state;
  const isMemory = state.config.durability === "ephemeral";
  return html`<${Card} class="state-card">
    <${Bar} label="Seqs of the topic" parts=${PLACES.filter(([key]) => places[key] > 0 || key === "evicted" || key === "log").map(([key, name, color]) => ({
      name: key === "log" && isMemory ? "memory only" : name, value: places[key], text: count(places[key]), color,
    }))} />
    <${Figures} items=${[
      ["Records", state.count], ["Size", size(state.bytes)], ["First seq", state.earliest_seq], ["Head", state.head_seq],
      ["Synced", isMemory ? "never" : count(state.synced_seq)], ["In memory", places.memory], places.segments > 0 && ["Segments", places.segments],
      ["Durability", html`<${Badge}>${state.config.durability}<//>`],
      state.config.ttl_ms > 0 && ["Lifetime", duration(state.config.ttl_ms)],
      state.config.cap_records > 0 && ["Cap", plural(state.config.cap_records, "record")],
      state.config.cap_bytes > 0 && ["Cap", size(state.config.cap_bytes)],
      ["Written", ago(state.last_write_ts)], ["Read", ago(state.last_read_ts)], ["Priority", state.effective_priority],
      queue && ["Ready", queue.ready], queue && ["In flight", queue.in_flight], queue && ["Delayed", queue.delayed], queue && ["Dead", queue.dead_lettered],
    ]} />
    ${queue?.paused && html`<p class="notice warn">The queue is paused${queue.paused_until ? ` until ${time(queue.paused_until)}` : ""}.</p>`}
    ${state.fences && html`<p class="foot">Fences: ${Object.entries(state.fences).map(([fence, token]) => `${visible(fence)} = ${token}`).join(", ")}</p>`}
  <//>`;
}

function Config({ state, done }) {
  const [config, set] = useState({});
  const [saved, setSaved] = useState(false);
  const action = useAction();
  const patch = patchOf(config, state.config);
  const changed = Object.keys(patch).length;
  const allowed = may("admin", state.topic);
  const save = async (event) => {
    event.preventDefault();
    if (changed === 0) return;
    if (await action.run(() => call("PUT", ["topics", state.topic], { query: { create: false }, body: patch }))) {
      set({});
      setSaved(true);
      done();
    }
  };
  return html`<${Card} title="Configuration">
    <form onSubmit=${save}>
      ${!allowed && html`<p class="notice">${daemon.value.isStandby ? "A standby changes nothing: its owner does." : "This key may not change it."}</p>`}
      <${ConfigFields} config=${config} set=${(next) => (setSaved(false), set(next))} present=${state.config} error=${action.error} disabled=${!allowed} />
      <${Trouble} error=${action.error} />
      ${allowed && html`<footer class="form-foot"><span role="status">${changed > 0 ? `${plural(changed, "field")} changed` : saved ? "Saved." : ""}</span>
        <${Do} disabled=${changed === 0} onClick=${() => (action.clear(), set({}))}>Undo<//><button class="primary" disabled=${changed === 0 || action.busy}>Save</button></footer>`}
    </form>
  <//>`;
}
