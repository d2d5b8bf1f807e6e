// The storage: the log by shard, segments by tier, checkpoints, reclaiming, and the bucket.

import { html } from "../vendor/htm-preact.js";
import { call } from "../api.js";
import { count, duration, plural, size, time } from "../format.js";
import { usePoll } from "../live.js";
import { Age, Badge, Card, Empty, Figures, Loaded, Page, Table, numbers } from "../parts.js";

const STATES = { opening: "warn", working: "good", waiting: "warn", refused: "bad" };

export function Storage({ figures }) {
  const poll = usePoll((signal) => call("GET", "storage", { signal }), [], 4000);
  return html`<${Page} title="Storage"><${Loaded} poll=${poll}>${(now) => html`
    ${now.checkpoints.error && html`<p class="notice bad">The last checkpoint has failed: ${now.checkpoints.error}. The log grows meanwhile, and it is tried again.</p>`}
    <${Card} title="The log, by shard">
      <${Table} label="Shards" rows=${now.shards} rowKey=${(one) => one.shard} columns=${[
        { title: "Shard", cell: (one) => html`${one.shard} ${one.read_only && html`<${Badge} kind="bad">read-only<//>`}` },
        numbers("Written", (one) => one.bytes, false, size),
        numbers("Frames", (one) => one.frames, true), numbers("Syncs", (one) => one.syncs),
        numbers("Sync p99", (one) => one.sync_p99_ms, false, duration),
        numbers("Waiting", (one) => one.queue_depth, true), numbers("Files begun", (one) => one.rotations, true),
      ]} />
    <//>
    <${Card} title="Segments, by tier">
      <${Table} label="Segments" rows=${now.tiers.filter((one) => one.tier === "hot" || one.segments > 0 || now.cold !== "none")} rowKey=${(one) => one.tier} columns=${[
        { title: "Tier", cell: (one) => html`${one.tier} <span class="soft">${one.tier === "hot" ? "the data directory" : now.cold === "bucket" ? "the bucket" : "the cold directory"}</span>${one.tier === "cold" && !now.cold_usable && html` <${Badge} kind="bad">away<//>`}` },
        numbers("Segments", (one) => one.segments), numbers("Seqs", (one) => one.seqs), numbers("Size", (one) => one.bytes, false, size),
      ]} />
    <//>
    <div class="pair">
      <${Card} title="Checkpoints"><${Figures} items=${[
        ["Last", html`<${Age} ms=${now.checkpoints.age_ms} />`], ["Took", duration(now.checkpoints.took_ms)], ["Taken", count(now.checkpoints.taken)], ["Failed", count(now.checkpoints.failed)],
        ["Every", duration(now.checkpoints.interval_ms)], ["Changed topics", count(now.checkpoints.changed_topics)],
      ]} /><//>
      <${Card} title="Reclaiming and disk"><${Figures} items=${[
        ["To look at", plural(now.reclaim.topics_waiting, "topic")], ["Every", duration(now.reclaim.interval_ms)],
        ["Disk free", size(figures?.disk.free_bytes)], ["Kept free", size(figures?.disk.min_free_bytes), "below that appends are refused"],
      ]} /><//>
    </div>
    ${figures?.standby && html`<${Card} title="Standby"><${Figures} items=${[
      ["State", html`<${Badge} kind=${figures.standby.state === "following" ? "good" : "warn"}>${figures.standby.state}<//>`], ["Owner", figures.standby.owner ?? "not known"],
      ["Epoch", count(figures.standby.epoch)], ["Round", count(figures.standby.round)], ["Shows", time(figures.standby.at)], ["Behind for", duration(figures.standby.lag_ms)],
    ]} /><//>`}
    ${!figures?.standby && html`<${Card} title="Bucket">${now.bucket ? html`
      ${now.bucket.problem && html`<p class="notice ${STATES[now.bucket.state] === "bad" ? "bad" : "warn"}">${now.bucket.problem}</p>`}
      <${Figures} items=${[
        ["State", html`<${Badge} kind=${STATES[now.bucket.state]}>${now.bucket.state}<//>`], ["Epoch", count(now.bucket.epoch)], ["Round", count(now.bucket.round)],
        ["Rounds since start", count(now.bucket.rounds)], ["Written", size(now.bucket.round_bytes)], ["Not there yet", size(now.bucket.lag_bytes)], ["Behind for", duration(now.bucket.lag_ms)],
        ["Last backup", now.bucket.has_base ? html`<${Age} ms=${now.bucket.base_age_ms} />` : "none yet", "the newest base: a restore begins with it"], now.bucket.has_base && ["Base", count(now.bucket.base)], ["Base is due", now.bucket.base_is_due ? "yes" : "no"],
        ["Bases since start", count(now.bucket.bases)], now.bucket.bases_failed > 0 && ["Bases failed", count(now.bucket.bases_failed)],
        now.bucket.calls_hanging > 0 && ["Calls hanging", count(now.bucket.calls_hanging)], now.bucket.repairs_waiting > 0 && ["Repairs waiting", count(now.bucket.repairs_waiting)],
      ]} />` : html`<${Empty} title="There is no bucket." command="TOPICS_BUCKET=s3://backups/topics">With this setting the daemon keeps a second home of the data in object storage.<//>`}<//>`}
  `}<//><//>`;
}
