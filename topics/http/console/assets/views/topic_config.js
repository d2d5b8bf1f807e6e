// The configuration of a topic, with help on each field. `durability` and the like are those of `PUT /v0/topics/{topic}`.

import { Choice, Text, html } from "../kit.js";

const YES_NO = [["true", "yes"], ["false", "no"]];
const DEFAULT = "Empty: as the daemon's settings say.";
const TAG_NODE = [["", "no"], ["tag", "tag"], ["node", "node"]];

// [name, what it is called, kind, help, for which type, options]
const FIELDS = [
  ["durability", "Durability", "choice", "When an append is acknowledged: in memory only, handed to the log, written, synced, or in the bucket.", "", [["ephemeral", "ephemeral: in memory only"], ["memory", "memory: handed to the log"], ["disk", "disk: written"], ["fsync", "fsync: synced"], ["remote", "remote: in the bucket"]]],
  ["ttl_ms", "Lifetime (ms)", "number", "Records older than this are removed. 0 keeps them for ever.", ""],
  ["cap_records", "Most records", "number", "0 is no cap.", ""],
  ["cap_bytes", "Most bytes", "number", "Of data and meta. 0 is no cap.", ""],
  ["discard", "At the cap", "choice", "What happens to an append that does not fit.", "", [["old", "the oldest records go"], ["reject", "the append is refused"]]],
  ["retention", "Retention", "choice", "With “consumed”, records that all consumers and groups have finished are removed.", "log", [["limits", "by the limits above"], ["consumed", "until all consumers have finished"]]],
  ["priority", "Priority", "nullable", "-1000 to 1000: which topic is delivered first under load. Empty: as recently as it is used.", ""],
  ["idempotency_window_ms", "Idempotency window (ms)", "number", "How long a repeated append with the same key is recognised.", ""],
  ["dedupe_node", "Filter by node", "choice", "Readers can leave out records that they wrote themselves.", "", YES_NO],
  ["lease_ms", "Lease (ms)", "number", "How long a job is leased if the claim does not say.", "queue"],
  ["claim_jitter_ms", "Claim window (ms)", "number", "How long claims are gathered before jobs are dealt.", "queue"],
  ["max_deliveries", "Most deliveries", "number", "Then a job goes to the dead letters. 0 delivers it for ever.", "queue"],
  ["dead_letter", "Dead letters go to", "text", "The name of a topic. Empty: nowhere.", "queue"],
  ["completed", "Results go to", "text", "The name of a topic for the results of acks. Empty: nowhere.", "queue"],
  ["leases_durable", "Durable leases", "choice", "Leases are synced before a claim is answered.", "queue", YES_NO],
  ["max_in_flight", "Most in flight", "number", "Leased jobs at a time. 0 is no limit.", "queue"],
  ["priority_aging_ms", "Priority aging (ms)", "number", "A waiting job counts as one higher after this. 0 is off.", "queue"],
  ["order_by", "Order by", "choice", "Jobs with the same tag or node are done one after the other.", "queue", TAG_NODE],
  ["retry", "Retry", "json", `When a failed job is ready again, as JSON: {"backoff": "exponential", "delay_ms": 1000}. Empty: at once.`, "queue"],
  ["rate", "Rate", "json", `Most jobs in a time, as JSON: {"jobs": 100, "per_ms": 60000}. Empty: no limit.`, "queue"],
  ["max_in_flight_per_key", "Most in flight for a key", "json", `As JSON: {"by": "tag", "max": 2}. Empty: no limit.`, "queue"],
  ["keep_per_tag", "Kept for each tag", "number", "Only the newest so many records of each tag stay. 0 keeps all.", "log"],
  ["null_ttl_ms", "Null records stay (ms)", "number", "Then a record with null data, which removes its tag, goes too.", "log"],
  ["segment_max_events", "Segment: most records", "nullable", DEFAULT, ""],
  ["segment_max_bytes", "Segment: most bytes", "nullable", DEFAULT, ""],
  ["segment_max_age_ms", "Segment: longest time (ms)", "nullable", DEFAULT, ""],
  ["schema", "Schema", "json", "A JSON Schema for the data of records. Empty: any data.", ""],
];

const PLAIN = ["durability", "ttl_ms", "cap_records", "cap_bytes", "discard", "max_deliveries", "dead_letter"];

const asText = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** The fields as texts. `config` has those that the user has changed, over `present`. */
export function ConfigFields({ config, set, present = {}, creating = false, error = null, disabled = false }) {
  const type = config.type ?? present.type ?? "log";
  const wrong = error?.detail?.field;
  const fields = FIELDS.filter(([, , , , only]) => only === "" || only === type);
  const shown = (names) => fields.filter(([name]) => names(name)).map(([name, label, kind, help, , options]) => {
    const value = config[name] ?? asText(present[name] ?? (creating && name === "durability" ? "disk" : undefined));
    const change = (text) => set({ ...config, [name]: text });
    const mistake = wrong === name ? error.message : null;
    if (kind === "choice") return html`<${Choice} key=${name} label=${label} help=${mistake ?? help} value=${value || options[0][0]} set=${change} options=${options} disabled=${disabled} />`;
    return html`<${Text} key=${name} label=${label} help=${help} error=${mistake} value=${value} set=${change} disabled=${disabled}
      inputmode=${kind === "number" ? "numeric" : undefined} placeholder=${kind === "number" ? "0" : ""} />`;
  });
  return html`<div class="fields">
    ${creating && html`<${Choice} label="Type" help="A log is read from any place; the records of a queue are jobs." value=${type} set=${(value) => set({ ...config, type: value })} options=${[["log", "log"], ["queue", "queue"]]} />`}
    ${shown((name) => PLAIN.includes(name))}
    <details class="more" open=${!creating}><summary>More fields</summary><div class="fields">${shown((name) => !PLAIN.includes(name))}</div></details>
  </div>`;
}

/** The body of a PUT: the fields that differ from the present ones. A text that is no number or JSON is sent as it is:
 *  the daemon says what is wrong with it. */
export function patchOf(config, present) {
  const patch = {};
  if (config.type !== undefined && present.type === undefined) patch.type = config.type;
  for (const [name, , kind] of FIELDS) {
    const text = config[name];
    if (text === undefined || text === asText(present[name])) continue;
    patch[name] = valueOf(text.trim(), kind, name);
  }
  return patch;
}

function valueOf(text, kind, name) {
  if (kind === "number") return text === "" ? 0 : /^-?\d+$/.test(text) ? Number(text) : text;
  if (text === "") return null;
  if (kind === "nullable") return /^-?\d+$/.test(text) ? Number(text) : text;
  if (kind === "choice") return text === "true" ? true : text === "false" ? false : text;
  if (kind === "json") {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
  return text;
}
