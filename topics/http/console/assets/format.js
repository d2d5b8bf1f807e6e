// Numbers, sizes, times and texts as the console shows them. Pure.
// `topics top` (topics/cli/output.py) shows the same things in the same words.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A whole number with separators: 1,234,567. */
export const count = (value) => (value == null ? "–" : whole.format(value));

/** A rate per second: 0, 12.3, 1,234. */
export const rate = (value) => (value == null ? "–" : value >= 100 || value === 0 ? whole.format(value) : value.toFixed(1));

const UNITS = ["kB", "MB", "GB", "TB", "PB"];

/** A size in powers of 1000: 999 B, 1.5 kB, 20.0 MB. */
export function size(bytes) {
  if (bytes == null) return "–";
  if (bytes < 1000) return `${Math.round(bytes)} B`;
  let value = bytes, power = -1;
  while (value >= 999.95 && power < UNITS.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${value.toFixed(1)} ${UNITS[power]}`;
}

const DURATIONS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];

/** A duration of milliseconds: 0.4 ms, 12s, 3h5m; of long ones the two largest units. */
export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${ms < 10 && ms % 1 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const parts = DURATIONS.map(([unit, scale], i) => [Math.floor((i === 0 ? ms : ms % DURATIONS[i - 1][1]) / scale), unit]);
  const first = parts.findIndex(([value]) => value > 0);
  return parts.slice(first, first + 2).filter(([value]) => value > 0).map(([value, unit]) => `${value}${unit}`).join("");
}

/** How long ago something of this age (ms) was. */
export const since = (ms) => (ms == null ? "never" : `${duration(ms)} ago`);

/** How long ago a time (epoch ms) was. */
export const ago = (ts, now = Date.now()) => (ts == null ? "never" : now - ts < 1000 ? "now" : since(now - ts));

/** A time (epoch ms) of the browser's time zone: 2026-01-31 12:00:00.123. */
export function time(ts) {
  if (ts == null) return "–";
  // The ISO form of a date is in UTC: it gets the minutes by which the zone differs.
  const date = new Date(ts - new Date(ts).getTimezoneOffset() * 60_000);
  return Number.isNaN(date.getTime()) ? String(ts) : date.toISOString().replace("T", " ").slice(0, -1);
}

/** A time without the day, if it is of today. */
export function shortTime(ts) {
  const text = time(ts);
  return text.slice(0, 10) === time(Date.now()).slice(0, 10) ? text.slice(11) : text;
}

export const percent = (share) => (share == null ? "–" : `${Math.round(share * 100)}%`);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// Characters that are not seen, or change the order in which others are: a record could make itself look like another.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text with hidden characters as escapes: what is shown is what is there. */
export const visible = (text) =>
  text.replace(HIDDEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The beginning of a text, with an ellipsis if it is longer. */
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
