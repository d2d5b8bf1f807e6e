// The figures of the last minutes, kept in this tab: what the graphs show.

import { Observed, call } from "./api.js";

const KEPT = 300;

const empty = () => ({ times: [], points: [] });

export const history = new Observed(empty());

/** Add the figures of one moment. A gap (a tab that was hidden, a daemon that was away) is drawn as one. */
export function remember(figures) {
  const { times, points } = history.value;
  const at = figures.ts / 1000;
  const last = times.at(-1);
  if (last !== undefined && (at <= last || figures.uptime_ms / 1000 < at - last - 1)) {
    if (at <= last) return history.set({ times: [at], points: [figures] });
  }
  if (last !== undefined && at - last > 10) {
    times.push(last + 1);
    points.push(null);
  }
  times.push(at);
  points.push(figures);
  const spare = Math.max(0, times.length - KEPT);
  return history.set({ times: times.slice(spare), points: points.slice(spare) });
}

export const figures = (signal) => call("GET", "figures", { signal });

/** One series: `pick` returns a number or null. */
export const series = (name, pick, show) => ({
  name, show, values: history.value.points.map((point) => (point === null ? null : (pick(point) ?? null))),
});
