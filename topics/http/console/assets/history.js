// The figures of the last minutes, kept in this tab: what the graphs show.

import { Observed, call } from "./api.js";

const KEPT = 300;

export const history = new Observed({ times: [], points: [] });

/** Add the figures of one moment. A gap (a tab that was hidden, a daemon that was away) is drawn as one. */
export function remember(figures) {
  const { times, points } = history.value;
  const at = figures.ts / 1000;
  const last = times.at(-1);
  if (at <= last) return history.set({ times: [at], points: [figures] });
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
