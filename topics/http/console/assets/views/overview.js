// The overview: what the daemon does now, graphs of the last minutes, and what needs somebody's attention.

import { html } from "../vendor/htm-preact.js";
import { count, duration, percent, plural, rate, size } from "../format.js";
import { Graph } from "../graph.js";
import { history, series } from "../history.js";
import { useObserved } from "../live.js";
import { Busy, Card, Empty, Figures, Page, link } from "../parts.js";

const LAG = 1000;

/** Sentences about what needs attention: `[kind, text, address]`. */
export function warnings(now) {
  const found = [];
  if (now.failed_shards > 0) found.push(["bad", `${plural(now.failed_shards, "shard")} of the log failed and ${now.failed_shards === 1 ? "takes" : "take"} no writes until a restart.`, link("storage")]);
  if (now.disk.shortage) found.push(["bad", `Appends are refused: ${now.disk.shortage}.`, link("storage")]);
  if (now.salvaged) found.push(["bad", "The last start found damage, and went on without what is lost. The daemon's log says what."]);
  if (!now.cold_usable) found.push(["bad", "The cold directory is not this daemon's, or is away: old segments cannot be read.", link("storage")]);
  if (now.pressure.saturated) found.push(["bad", "A queue of the log is full: some appends are refused with 429."]);
  else if (now.pressure.value >= 0.8) found.push(["warn", `The daemon is pressed (${percent(now.pressure.value)}): records are gathered for ${duration(now.pressure.coalesce_ms)} before they are delivered.`]);
  if (now.pressure.lowest_paused) found.push(["warn", "Topics with a negative priority are paused."]);
  for (const { router, lag } of now.lagging_routers) if (lag >= LAG) found.push(["warn", `Router ${router} lags by ${plural(lag, "record")}.`, link("routers", router)]);
  const { bucket } = now;
  if (bucket && bucket.state !== "working") found.push([bucket.state === "refused" ? "bad" : "warn", `The bucket is ${bucket.state === "refused" ? "refused" : "away"}: ${bucket.problem || "nothing is archived meanwhile"}.`, link("storage")]);
  else if (bucket && !bucket.has_base) found.push(["warn", "There is no base in the bucket yet, so a restore is not possible.", link("storage")]);
  if (now.results_waiting > 0) found.push(["warn", `${plural(now.results_waiting, "result")} of jobs wait to be delivered.`, link("queues")]);
  return found;
}

export function Overview({ figures: now }) {
  const { times } = useObserved(history);
  if (now === null) return html`<${Page} title="Overview"><${Busy} /><//>`;
  const said = warnings(now);
  const ms = (value) => (value === null ? "–" : duration(value));
  const latency = (name, part) => (point) => point.latencies[name]?.[part];
  return html`<${Page} title="Overview">
    ${said.length > 0 && html`<ul class="warnings" aria-label="Warnings">${said.map(([kind, text, address]) => html`<li key=${text} class="notice ${kind}">
      ${address ? html`<a href=${address}>${text}</a>` : text}</li>`)}</ul>`}
    <div class="tiles">
      <${Tile} name="Topics" value=${count(now.topics)} more=${plural(now.records, "record")} address=${link("topics")} />
      <${Tile} name="In" value=${rate(now.rates?.records_in)} unit="records/s" more=${`${size(now.rates?.bytes_in)}/s`} />
      <${Tile} name="Out" value=${rate(now.rates?.records_out)} unit="records/s" more=${`${size(now.rates?.bytes_out)}/s`} />
      <${Tile} name="Pressure" value=${percent(now.pressure.value)} more=${now.pressure.coalesce_ms > 0 ? `gathers ${duration(now.pressure.coalesce_ms)}` : "nothing waits"} />
      <${Tile} name="Connections" value=${count(now.connections.open)} more=${`${count(now.connections.streams + now.connections.sockets)} of them streams`} />
      <${Tile} name="Up" value=${duration(now.uptime_ms)} more=${`version ${now.version}`} />
    </div>
    ${now.topics === 0 && html`<${Card}><${Empty} title="There is no topic yet." command=${`topics append hello '{"text": "hello"}'`}>An append makes one, and so does the button on the page <a href=${link("topics")}>Topics</a>.<//><//>`}
    <div class="graphs">
      <${Graph} title="Records per second" times=${times} series=${[series("in", (p) => p.rates?.records_in, rate), series("out", (p) => p.rates?.records_out, rate)]} />
      <${Graph} title="Bytes per second" times=${times} series=${[series("in", (p) => p.rates?.bytes_in, size), series("out", (p) => p.rates?.bytes_out, size), series("WAL", (p) => p.rates?.wal_bytes, size)]} />
      <${Graph} title="Append latency, ms" times=${times} series=${[series("p50", latency("append", "p50_ms"), ms), series("p99", latency("append", "p99_ms"), ms)]} />
      <${Graph} title="Delivery latency, ms" times=${times} series=${[series("p50", latency("delivery", "p50_ms"), ms), series("p99", latency("delivery", "p99_ms"), ms)]} />
      <${Graph} title="Commit and sync, p99, ms" times=${times} series=${[series("commit", latency("commit", "p99_ms"), ms), series("sync", latency("sync", "p99_ms"), ms)]} />
      <${Graph} title="Pressure" times=${times} most=${1} series=${[series("pressure", (p) => p.pressure.value, (v) => (v === null ? "–" : percent(v)))]} />
      <${Graph} title="Memory" times=${times} series=${[series("process", (p) => p.memory.resident_bytes, size), series("cache", (p) => p.memory.cache_bytes, size)]} />
      <${Graph} title="Connections" times=${times} series=${[series("open", (p) => p.connections.open, count), series("streams and sockets", (p) => p.connections.streams + p.connections.sockets, count)]} />
    </div>
    <${Card} title="The daemon">
      <${Figures} items=${[
        ["Commits waiting", count(now.queue_depth)],
        ["Syncs", `${rate(now.rates?.syncs)}/s`],
        ["Requests", `${rate(now.rates?.requests)}/s`],
        ["Disk free", size(now.disk.free_bytes), "of the data directory"],
        ["Memory", size(now.memory.resident_bytes)],
        ["Record cache", `${size(now.memory.cache_bytes)} of ${size(now.memory.cache_limit_bytes)}`],
        ["Routers", count(now.routers)], ["Consumers", count(now.consumers)], ["Groups", count(now.groups)], ["Schedules", count(now.schedules)],
        ["Redrives", count(now.redrives)],
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
