// The jobs of a queue or a group: by state, with a filter; one job's history; retrying, cancelling, giving back.

import { Badge, Card, Choice, Confirm, Do, Empty, Loaded, Opener, Table, Text, ago, call, count, filterOf, html, may, numbers, plural, time, useAction, useGet, usePages, useState, visible } from "../kit.js";
import { JsonTree, brief } from "../json_tree.js";

const STATES = [["", "all but dead"], ["ready", "ready"], ["in_flight", "in flight"], ["delayed", "delayed"], ["dead", "dead"]];
const KINDS = { ready: "good", in_flight: "queue", delayed: "warn", dead: "bad" };

export function Jobs({ topic, group, dead, done }) {
  const parts = ["topics", topic, ...(group === undefined ? [] : ["groups", group]), "jobs"];
  const [state, setState] = useState("");
  const [typed, setTyped] = useState("");
  const [filter, setFilter] = useState(null);
  const [chosen, choose] = useState(new Set());
  const [open, setOpen] = useState(null);
  const [asking, ask] = useState(null);
  const [said, say] = useState("");
  const action = useAction();
  const { cursor, first, buttons } = usePages();
  const poll = useGet(parts, { state, filter, page_size: 50, cursor, touch: false }, 3000, true);
  const restart = () => (first(), choose(new Set()), setOpen(null), say(""));
  const apply = async (event) => {
    event.preventDefault();
    if (typed.trim() === "") return (setFilter(null), restart());
    const found = await action.run(() => filterOf(typed));
    return found && (setFilter(JSON.stringify(found)), restart());
  };
  const toggle = (seq) => choose((before) => {
    const next = new Set(before);
    if (!next.delete(seq)) next.add(seq);
    return next;
  });
  const seqs = [...chosen];
  const told = (answer) => {
    say(`${plural(answer.done ?? answer.nacked, "job")} done, ${count(answer.skipped?.length ?? answer.skipped)} skipped.`);
    choose(new Set());
    poll.now();
    done();
  };
  const change = (what, body) => async () => told(await call("POST", [...parts, what], { body }));
  const giveBack = async () => {
    const byNode = Map.groupBy(poll.data.jobs.filter((job) => chosen.has(job.$seq) && job.node !== undefined), (job) => job.node);
    const total = { done: 0, skipped: 0 };
    for (const [node, jobs] of byNode) {
      const answer = await call("POST", [...parts.slice(0, -1), "nack"], { body: { node, seqs: jobs.map((job) => job.$seq) } });
      total.done += answer.nacked;
      total.skipped += answer.skipped.length;
    }
    told(total);
  };
  const mayRetry = may("read write delete", topic), mayCancel = may("delete", topic), mayNack = may("write", topic);
  const many = filter !== null && chosen.size === 0;
  const selection = many ? { filter: JSON.parse(filter) } : { seqs };
  const which = many ? "all jobs that match the filter" : plural(seqs.length, "job");
  const questions = {
    retry: { action: "Retry", run: change("retry", { ...selection, ...(state === "dead" || state === "delayed" ? { state } : {}) }),
      text: state === "dead" ? `Dead letters become jobs again, with new seqs: ${which}.` : `Delayed jobs become ready now: ${which}.` },
    cancel: { action: "Cancel the jobs", run: change("cancel", { ...selection, ...(state ? { state } : {}) }), text: `They are deleted, also if they are leased: ${which}. This cannot be undone.` },
    nack: { action: "Give back", run: giveBack, text: `The jobs are taken from those who hold them, and can be claimed again: ${which}.` },
  };
  const none = !many && seqs.length === 0;
  const job = poll.data?.jobs.find((one) => one.$seq === open);
  return html`<${Card} title="Jobs">
    <form class="tools" role="search" onSubmit=${apply}>
      <${Choice} label="State" value=${state} set=${(value) => (setState(value), restart())} options=${STATES.filter(([key]) => key !== "dead" || dead)} />
      <${Text} label="Filter" class="grow mono" value=${typed} set=${setTyped} data-search type="search" placeholder=${`tag = "invoice"`} error=${action.error && action.error.message.replace(/^text: /, "")} />
      <button class="primary">Show</button>
    </form>
    <div class="tools">
      ${mayRetry && html`<${Do} disabled=${none || state === "ready" || state === "in_flight"} onClick=${() => ask("retry")}>Retry<//>`}
      ${mayNack && html`<${Do} disabled=${seqs.length === 0 || state !== "in_flight"} onClick=${() => ask("nack")}>Give back<//>`}
      ${mayCancel && html`<${Do} class="danger" disabled=${none || state === "dead"} onClick=${() => ask("cancel")}>Cancel<//>`}
      <span class="foot after" role="status">${said || (many ? "An action is about all jobs that match the filter." : seqs.length > 0 ? `${plural(seqs.length, "job")} chosen` : "")}</span>
    </div>
    <${Loaded} poll=${poll}>${(page) => html`
      <${Table} label="Jobs" class="jobs" rows=${page.jobs} rowKey=${(one) => one.$seq} empty=${html`<${Empty} title=${page.next_cursor ? "No job here; there may be more." : "There is no such job."} />`} columns=${[
        { title: "Seq", class: "nowrap", cell: (one) => html`${(mayRetry || mayCancel || mayNack) && html`<input type="checkbox" class="pick" aria-label=${`Choose job ${one.$seq}`} checked=${chosen.has(one.$seq)} onChange=${() => toggle(one.$seq)} />`}
          <${Opener} seq=${one.$seq} open=${open} set=${setOpen} />` },
        { title: "State", cell: (one) => html`<${Badge} kind=${KINDS[one.state]}>${one.state.replace("_", " ")}<//>` },
        numbers("Deliveries", "deliveries"), numbers("Priority", "priority", true),
        { title: "Tag", class: "wide name short", cell: (one) => one.$tag !== undefined && visible(one.$tag) },
        { title: "Data", class: "code line", cell: (one) => brief(one.data, 160) },
      ]} />
      ${buttons(page)}`}<//>
    ${job && html`<${History} job=${job} />`}
    ${asking && html`<${Confirm} ...${questions[asking]} title=${questions[asking].action} close=${() => ask(null)}><p>${questions[asking].text}</p><//>`}
  <//>`;
}

function History({ job }) {
  const letter = job.meta?.$dead_letter_from !== undefined;
  const steps = [
    ["appended", time(job.$ts)],
    [`delivered ${count(job.deliveries)} ${job.deliveries === 1 ? "time" : "times"}`, job.deliveries > 0 && job.last_error === undefined ? "without an error that is known" : ""],
    job.last_error !== undefined && ["last error", visible(job.last_error)],
    job.state === "in_flight" && [`held by ${visible(job.node ?? "?")}`, `until ${time(job.deadline)}`],
    job.not_before !== undefined && ["not before", `${time(job.not_before)}`],
    letter && ["dead", `was seq ${job.meta.$dead_letter_src_seq} of ${visible(job.meta.$dead_letter_from)}`],
  ].filter(Boolean);
  return html`<section class="detail-row" aria-label=${`Job ${job.$seq}`}><h3>Job ${count(job.$seq)}, appended ${ago(job.$ts)}</h3>
    <ol class="history">${steps.map(([what, when]) => html`<li key=${what}><b>${what}</b> ${when}</li>`)}</ol>
    <${JsonTree} value=${job.data} />${job.meta && html`<h3>Meta</h3><${JsonTree} value=${job.meta} />`}</section>`;
}
