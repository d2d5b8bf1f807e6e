// The storage: the log by shard, segments by tier, checkpoints, reclaiming, and the bucket.

import { Badge, Busy, Card, Elsewhere, Empty, Figures, Loaded, Page, Table, duration, html, numbers, plural, since, size, time, useGet, visible } from "../kit.js";

const STATES = { opening: "warn", working: "good", waiting: "warn", refused: "bad", following: "good", owns: "queue", silent: "bad" };

export function Storage({ figures }) {
  const poll = useGet("storage", {}, 4000);
  const standby = figures?.standby;
  return html`<${Page} title="Storage"><${Loaded} poll=${poll}>${({ shards, tiers, checkpoints, reclaim, bucket, replicas, cold, cold_usable }) => html`
    ${checkpoints.error && html`<p class="notice bad">The last checkpoint has failed: ${visible(checkpoints.error)}. The log grows meanwhile, and it is tried again.</p>`}
    <${Card} title="The log, by shard">
      <${Table} label="Shards" rows=${shards} rowKey=${(one) => one.shard} columns=${[
        { title: "Shard", cell: (one) => html`${one.shard} ${one.read_only && html`<${Badge} kind="bad">read-only<//>`}` },
        numbers("Written", "bytes", false, size),
        numbers("Frames", "frames", true), numbers("Syncs", "syncs"),
        numbers("Sync p99", "sync_p99_ms", false, duration),
        numbers("Waiting", "queue_depth", true), numbers("Files begun", "rotations", true),
      ]} />
    <//>
    <${Card} title="Segments, by tier">
      <${Table} label="Segments" rows=${tiers.filter((one) => one.tier === "hot" || one.segments > 0 || cold !== "none")} rowKey=${(one) => one.tier} columns=${[
        { title: "Tier", cell: (one) => html`${one.tier} <span class="soft">${one.tier === "hot" ? "the data directory" : cold === "bucket" ? "the bucket" : "the cold directory"}</span>${one.tier === "cold" && !cold_usable && html` <${Badge} kind="bad">away<//>`}` },
        numbers("Segments", "segments"), numbers("Seqs", "seqs"), numbers("Size", "bytes", false, size),
      ]} />
    <//>
    <div class="pair">
      <${Card} title="Checkpoints"><${Figures} items=${[
        ["Last", since(checkpoints.age_ms)], ["Took", duration(checkpoints.took_ms)], ["Taken", checkpoints.taken], ["Failed", checkpoints.failed],
        ["Every", duration(checkpoints.interval_ms)], ["Changed topics", checkpoints.changed_topics],
      ]} /><//>
      <${Card} title="Reclaiming and disk"><${Figures} items=${[
        ["To look at", plural(reclaim.topics_waiting, "topic")], ["Every", duration(reclaim.interval_ms)],
        ["Disk free", size(figures?.disk.free_bytes)], ["Kept free", size(figures?.disk.min_free_bytes), "below that appends are refused"],
      ]} /><//>
    </div>
    ${standby ? html`<${Card} title="Standby"><${Figures} items=${[
      ["State", html`<${Badge} kind=${STATES[standby.state]}>${standby.state}<//>`], ["Owner", standby.owner ? html`<${Elsewhere} url=${standby.owner} />` : "not known"],
      ["Epoch", standby.epoch], ["Round", standby.round], ["Shows", time(standby.at)], ["Behind for", duration(standby.lag_ms)],
    ]} /><//>`
    : html`<${Card} title="Bucket">${bucket ? html`
      ${bucket.problem && html`<p class="notice ${STATES[bucket.state] === "bad" ? "bad" : "warn"}">${visible(bucket.problem)}</p>`}
      <${Figures} items=${[
        ["State", html`<${Badge} kind=${STATES[bucket.state]}>${bucket.state}<//>`], ["Epoch", bucket.epoch], ["Round", bucket.round],
        ["Rounds since start", bucket.rounds], ["Written", size(bucket.round_bytes)], ["Not there yet", size(bucket.lag_bytes)], ["Behind for", duration(bucket.lag_ms)],
        ["Last backup", bucket.has_base ? since(bucket.base_age_ms) : "none yet", "the newest base: a restore begins with it"], bucket.has_base && ["Base", bucket.base], ["Base is due", bucket.base_is_due ? "yes" : "no"],
        ["Bases since start", bucket.bases], bucket.bases_failed > 0 && ["Bases failed", bucket.bases_failed],
        bucket.calls_hanging > 0 && ["Calls hanging", bucket.calls_hanging], bucket.repairs_waiting > 0 && ["Repairs waiting", bucket.repairs_waiting],
      ]} />` : html`<${Empty} title="There is no bucket." command="TOPICS_BUCKET=s3://backups/topics">With this setting the daemon keeps a second home of the data in object storage.<//>`}<//>`}
    ${replicas !== undefined && html`<${Card} title="Replicas">${replicas === null ? html`<${Busy} what="Reading the bucket" />` : html`
      <${Table} label="Replicas" rows=${replicas} rowKey=${(one) => `${one.role} ${one.url} ${one.node}`} columns=${[
        { title: "Daemon", cell: (one) => html`<${Elsewhere} url=${one.url || one.node} />${one.is_this && html` <span class="soft">this one</span>`}` },
        { title: "Role", class: "wide", cell: (one) => one.role },
        { title: "State", cell: (one) => html`<${Badge} kind=${STATES[one.state]}>${one.state}<//>` },
        numbers("Round", (one) => one.round ?? (one.is_this ? bucket?.round : null), true),
        numbers("Behind", "lag_ms", false, duration),
        numbers("Heard", "heard_ms", true, (ms) => (ms === null ? "–" : since(ms))),
      ]} />
      ${replicas.every((one) => one.role === "owner") && html`<p class="foot pager">No standby has told of itself. <code>topics serve --standby</code> with the same bucket makes one.</p>`}`}<//>`}
  `}<//><//>`;
}
