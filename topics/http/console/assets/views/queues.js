// Queues, and groups of logs: how many jobs are ready, in flight, delayed and dead; pausing, limits, jobs, dead letters.

import { BEGINS, Badge, Card, Choice, Confirm, Delete, Do, Empty, Figures, Loaded, NUMBER, Page, Rest, Search, Table, Tabs, Text, To, TopicTabs, call, count, html, link, may, numbers, plural, time, useFields, useGet, useHistory, useState } from "../kit.js";
import { Graph } from "../graph.js";
import { Jobs } from "./jobs.js";
import { Redrive } from "./redrive.js";

const COUNTS = [["ready", "Ready"], ["in_flight", "In flight"], ["delayed", "Delayed"], ["dead_lettered", "Dead"]];
const COUNTERS = COUNTS.map(([name, title]) => numbers(title, (one) => one.queue?.[name], name === "delayed"));

export function Queues({ address }) {
  const [, topic, group] = address.parts;
  if (topic === undefined) return html`<${List} prefix=${address.query.get("prefix") ?? ""} />`;
  return html`<${Queue} topic=${topic} group=${group} key=${`${topic} ${group}`} />`;
}

function List({ prefix }) {
  const [typed, setTyped] = useState(prefix);
  const query = { prefix: typed, page_size: 200 };
  const queues = useGet("topics", { ...query, type: "queue" }, 3000);
  const groups = useGet("groups", query, 3000);
  const paused = (one) => one.queue?.paused && html` <${Badge} kind="warn">paused<//>`;
  return html`<${Page} title="Queues and groups">
    <${Search} label="Topic begins with" value=${typed} set=${setTyped} />
    <${Card} title="Queues"><${Loaded} poll=${queues}>${(page) => html`
      <${Table} label="Queues" rows=${page.topics} rowKey=${(one) => one.topic} empty=${html`<${Empty} title="There is no queue." command="topics create mails --type queue">A queue is a topic whose records are jobs.<//>`}
        columns=${[{ title: "Queue", cell: (one) => html`<${To} at=${["queues", one.topic]} />${paused(one)}` }, ...COUNTERS]} />
      <${Rest} page=${page} rows=${page.topics} />`}<//><//>
    <${Card} title="Groups of logs"><${Loaded} poll=${groups}>${(page) => html`
      <${Table} label="Groups" rows=${page.groups} rowKey=${(one) => `${one.topic}/${one.group}`} empty=${html`<${Empty} title="There is no group." command="topics group create orders billing">The members of a group divide the records of a log among them.<//>`}
        columns=${[{ title: "Group", cell: (one) => html`<${To} at=${["queues", one.topic, one.group]}>${`${one.topic} / ${one.group}`}<//>${paused(one)}` },
          numbers("Lag", "lag"), ...COUNTERS]} />
      <${Rest} page=${page} rows=${page.groups} />`}<//><//>
  <//>`;
}

function Queue({ topic, group }) {
  const parts = group === undefined ? ["topics", topic] : ["topics", topic, "groups", group];
  const poll = useGet(parts, group === undefined ? { touch: false } : {});
  const { data } = poll;
  const { times, values: points } = useHistory(poll, (one) => one.queue ?? {});
  const [dialog, open] = useState(null);
  const close = () => (open(null), poll.now());
  const name = group === undefined ? topic : `${topic} / ${group}`;
  const terms = group === undefined ? data?.config : data;
  const isLog = group === undefined && data?.type === "log";
  const paused = data?.queue?.paused;
  const actions = data && !isLog && html`
    ${may("admin", topic) && html`<${Do} onClick=${() => open(paused ? "resume" : "pause")}>${paused ? "Resume" : "Pause"}<//>
      <${Do} onClick=${() => open("limits")}>Limits<//>`}
    ${group !== undefined && may("delete", topic) && html`<${Do} class="danger" onClick=${() => open("delete")}>Delete<//>`}`;
  return html`<${Page} title=${name} kind=${isLog ? "groups of" : group === undefined ? "queue" : "group"} actions=${actions}>
    <${Loaded} poll=${poll}>${() => isLog ? html`<${GroupsOf} topic=${topic} />` : html`
      ${group === undefined ? html`<${TopicTabs} topic=${topic} type="queue" current="jobs" />`
        : html`<${Tabs} current="jobs" items=${[["records", link("topics", topic), "Records of the log"], ["groups", link("queues", topic), "Its groups"], ["jobs", link("queues", topic, group), "Jobs"]]} />`}
      ${paused && html`<p class="notice warn">Paused: no job is given out${data.queue.paused_until ? ` until ${time(data.queue.paused_until)}` : ""}.</p>`}
      <div class="graphs two">
        <${Graph} title="Jobs" times=${times} series=${COUNTS.slice(0, 3).map(([key, title]) => ({ name: title.toLowerCase(), values: points.map((p) => p[key] ?? null), show: count }))} />
        <${Graph} title="Dead, since the topic exists" times=${times} series=${[{ name: "dead", values: points.map((p) => p.dead_lettered ?? null), show: count }]} />
      </div>
      <${Card} title="Terms"><${Figures} items=${[
        group !== undefined && ["Lag", plural(data.lag, "seq")], group !== undefined && ["Floor", data.floor, "everything up to it is finished"], group !== undefined && ["Missed", data.missed],
        ["Lease", `${count(terms.lease_ms)} ms`], ["Most deliveries", terms.max_deliveries || "no limit"], ["Most in flight", terms.max_in_flight || "no limit"],
        ["Rate", terms.rate ? `${terms.rate.jobs} in ${terms.rate.per_ms} ms` : "no limit"], ["Dead letters", terms.dead_letter ? html`<${To} at=${["topics", terms.dead_letter]} />` : "nowhere"],
        terms.completed && ["Results", html`<${To} at=${["topics", terms.completed]} />`], terms.order_by && ["Order", `by ${terms.order_by}`],
      ]} /><//>
      <${Jobs} topic=${topic} group=${group} dead=${terms.dead_letter} done=${poll.now} />
      ${terms.dead_letter && may("read write delete", terms.dead_letter) && html`<${Redrive} from=${topic} dead=${terms.dead_letter} done=${poll.now} />`}
      ${dialog === "pause" && html`<${Pause} parts=${parts} close=${close} />`}
      ${dialog === "resume" && html`<${Confirm} title="Resume" action="Resume" kind="primary" close=${close} run=${() => call("POST", [...parts, "resume"])}><p>Jobs of <b class="name">${name}</b> are given out again.</p><//>`}
      ${dialog === "limits" && html`<${Limits} parts=${parts} terms=${terms} isGroup=${group !== undefined} close=${close} />`}
      ${dialog === "delete" && html`<${Delete} what="group" name=${group} path=${parts} then=${link("queues", topic)} close=${() => open(null)}>What it has finished is forgotten. The records stay.<//>`}`}
    <//>
  <//>`;
}

function GroupsOf({ topic }) {
  const [creating, setCreating] = useState(false);
  const poll = useGet(["topics", topic, "groups"], { page_size: 200 }, 3000);
  return html`<${TopicTabs} topic=${topic} type="log" current="groups" />
    <${Card} title="Groups" actions=${may("admin", topic) && html`<${Do} onClick=${() => setCreating(true)}>Create a group<//>`}>
      <${Loaded} poll=${poll}>${(page) => html`<${Table} label="Groups" rows=${page.groups} rowKey=${(one) => one.group} empty=${html`<${Empty} title="The log has no group." command=${`topics group create ${topic} billing`}>The members of a group divide the records of a log among them.<//>`}
        columns=${[{ title: "Group", cell: (one) => html`<${To} at=${["queues", topic, one.group]} />` }, numbers("Lag", "lag"), ...COUNTERS]} />`}<//>
    <//>
    ${creating && html`<${CreateGroup} topic=${topic} close=${() => (setCreating(false), poll.now())} />`}`;
}

function CreateGroup({ topic, close }) {
  const [name, setName] = useState("");
  const [from, setFrom] = useState("tail");
  return html`<${Confirm} title="Create a group" action="Create" kind="primary" ready=${name !== ""} close=${close} run=${() => call("PUT", ["topics", topic, "groups", name], { body: { from } })}>
    <${Text} label="Name" value=${name} set=${setName} required />
    <${Choice} label="Begins" value=${from} set=${setFrom} options=${BEGINS} /><//>`;
}

function Pause({ parts, close }) {
  const [until, set] = useState("");
  const run = () => call("POST", [...parts, "pause"], { body: until ? { until: new Date(until).getTime() } : {} });
  return html`<${Confirm} title="Pause" action="Pause" kind="primary" run=${run} close=${close}>
    <p>No job is given out meanwhile. Jobs that are leased stay leased.</p>
    <${Text} label="Until" type="datetime-local" value=${until} set=${set} help="Empty: until somebody resumes it." /><//>`;
}

const LIMITS = [["lease_ms", "Lease (ms)"], ["max_deliveries", "Most deliveries (0: no limit)"], ["max_in_flight", "Most in flight (0: no limit)"]];

function Limits({ parts, terms, isGroup, close }) {
  const { values, text } = useFields({ ...Object.fromEntries(LIMITS.map(([name]) => [name, String(terms[name])])), rate: terms.rate ? JSON.stringify(terms.rate) : "" });
  const run = () => {
    const body = Object.fromEntries(LIMITS.map(([name]) => [name, /^\d+$/.test(values[name]) ? Number(values[name]) : values[name]]));
    try {
      body.rate = values.rate.trim() ? JSON.parse(values.rate) : null;
    } catch {
      body.rate = values.rate;
    }
    return call("PUT", parts, { query: isGroup ? {} : { create: false }, body });
  };
  return html`<${Confirm} title="Limits" action="Save" kind="primary" run=${run} close=${close}>
    ${LIMITS.map(([name, label]) => text(name, label, { ...NUMBER, key: name }))}${text("rate", "Rate", { help: `As JSON: {"jobs": 100, "per_ms": 60000}. Empty: no limit.` })}<//>`;
}
