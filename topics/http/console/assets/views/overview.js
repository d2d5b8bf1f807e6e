// The overview: what the daemon does now, graphs of the last minutes, and what needs somebody's attention.

import { Busy, Card, Figures, NoTopic, Page, count, duration, html, link, percent, plural, rate, size, useObserved } from "../kit.js";
import { Graph } from "../graph.js";
import { history } from "../history.js";

const LAG = 1000;

/** Sentences about what needs attention: `[kind, text, view]`. What no page may miss is in the banner. */
function warnings({ salvaged, cold_usable, pressure, lagging_routers, bucket, results_waiting }) {
  const found = [];
  const say = (kind, text, ...view) => found.push([kind, text, view]);
  if (salvaged) say("bad", "The last start found damage, and went on without what is lost. The daemon's log says what.");
  if (!cold_usable) say("bad", "The cold directory is not this daemon's, or is away: old segments cannot be read.", "storage");
  if (pressure.saturated) say("bad", "A queue of the log is full: some appends are refused with 429.");
  else if (pressure.value >= 0.8) say("warn", `The daemon is pressed (${percent(pressure.value)}): records are gathered for ${duration(pressure.coalesce_ms)} before they are delivered.`);
  if (pressure.lowest_paused) say("warn", "Topics with a negative priority are paused.");
  for (const { router, lag } of lagging_routers) if (lag >= LAG) say("warn", `Router ${router} lags by ${plural(lag, "record")}.`, "routers", router);
  const isRefused = bucket?.state === "refused";
  if (bucket && bucket.state !== "working") say(isRefused ? "bad" : "warn", `The bucket is ${isRefused ? "refused" : "away"}: ${bucket.problem || "nothing is archived meanwhile"}.`, "storage");
  else if (bucket && !bucket.has_base) say("warn", "There is no base in the bucket yet, so a restore is not possible.", "storage");
  if (results_waiting > 0) say("warn", `${plural(results_waiting, "result")} of jobs wait to be delivered.`, "queues");
  return found;
}

const rateOf = (name) => (point) => point.rates?.[name];
const latency = (name, part) => (point) => point.latencies[name]?.[part];
const latencies = (name) => [["p50", latency(name, "p50_ms")], ["p99", latency(name, "p99_ms")]];

/** Graphs: `[title, how values are shown, [name, value at a point]..., upper end]`. */
const GRAPHS = [
  ["Records per second", rate, [["in", rateOf("records_in")], ["out", rateOf("records_out")]]],
  ["Bytes per second", size, [["in", rateOf("bytes_in")], ["out", rateOf("bytes_out")], ["WAL", rateOf("wal_bytes")]]],
  ["Append latency, ms", duration, latencies("append")],
  ["Delivery latency, ms", duration, latencies("delivery")],
  ["Commit and sync, p99, ms", duration, [["commit", latency("commit", "p99_ms")], ["sync", latency("sync", "p99_ms")]]],
  ["Pressure", percent, [["pressure", (point) => point.pressure.value]], 1],
  ["Memory", size, [["process", (point) => point.memory.resident_bytes], ["cache", (point) => point.memory.cache_bytes]]],
  ["Connections", count, [["open", (point) => point.connections.open], ["streams and sockets", (point) => point.connections.streams + point.connections.sockets]]],
];

export function Overview({ figures: now }) {
  const { times, points } = useObserved(history);
  if (now === null) return html`<${Page} title="Overview"><${Busy} /><//>`;
  const said = warnings(now);
  const { rates, pressure, connections, disk, memory } = now;
  return html`<${Page} title="Overview">
    ${said.length > 0 && html`<ul class="warnings" aria-label="Warnings">${said.map(([kind, text, view]) => html`<li key=${text} class="notice ${kind}">
      ${view.length > 0 ? html`<a href=${link(...view)}>${text}</a>` : text}</li>`)}</ul>`}
    <div class="tiles">
      <${Tile} name="Topics" value=${count(now.topics)} more=${plural(now.records, "record")} address=${link("topics")} />
      <${Tile} name="In" value=${rate(rates?.records_in)} unit="records/s" more=${`${size(rates?.bytes_in)}/s`} />
      <${Tile} name="Out" value=${rate(rates?.records_out)} unit="records/s" more=${`${size(rates?.bytes_out)}/s`} />
      <${Tile} name="Pressure" value=${percent(pressure.value)} more=${pressure.coalesce_ms > 0 ? `gathers ${duration(pressure.coalesce_ms)}` : "nothing waits"} />
      <${Tile} name="Connections" value=${count(connections.open)} more=${`${count(connections.streams + connections.sockets)} of them streams`} />
      <${Tile} name="Up" value=${duration(now.uptime_ms)} more=${`version ${now.version}`} />
    </div>
    ${now.topics === 0 && html`<${Card}><${NoTopic}>, and so does the button on the page <a href="#/topics">Topics</a><//><//>`}
    <div class="graphs">
      ${GRAPHS.map(([title, show, series, most]) => html`<${Graph} key=${title} title=${title} times=${times} most=${most}
        series=${series.map(([name, pick]) => ({ name, show, values: points.map((point) => (point === null ? null : (pick(point) ?? null))) }))} />`)}
    </div>
    <${Card} title="The daemon">
      <${Figures} items=${[
        ["Commits waiting", now.queue_depth],
        ["Syncs", `${rate(rates?.syncs)}/s`],
        ["Requests", `${rate(rates?.requests)}/s`],
        ["Disk free", size(disk.free_bytes), "of the data directory"],
        ["Memory", size(memory.resident_bytes)],
        ["Record cache", `${size(memory.cache_bytes)} of ${size(memory.cache_limit_bytes)}`],
        ["Routers", now.routers], ["Consumers", now.consumers], ["Groups", now.groups], ["Schedules", now.schedules],
        ["Redrives", now.redrives],
        now.bucket && ["Bucket", now.bucket.state],
      ]} />
    <//>
  <//>`;
}

const Tile = ({ name, value, unit, more, address }) => html`<${address ? "a" : "div"} class="tile" href=${address}>
  <span class="tile-name">${name}</span>
  <span class="tile-value">${value}${unit && html` <small>${unit}</small>`}</span>
  <span class="tile-more">${more}</span>
<//>`;
