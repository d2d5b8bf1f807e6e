// Graphs of the last minutes. uPlot draws them; a caption says the present values, for those who do not see them.

import { Dot, html, useEffect, useRef } from "./kit.js";

const HEIGHT = 148;

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600];

/** The present value of a colour, as a canvas takes it. */
function style(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const faint = (color) => color.replace("rgb(", "rgba(").replace(")", ", .13)");

const short = (value) => {
  if (value === 0) return "0";
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= factor) return `${+(value / factor).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(3)}`;
};

/** `series` is `[{name, values, show}]`; `times` are epoch seconds. `most` is the upper end of the axis, if it is fixed. */
export function Graph({ title, times, series, most }) {
  const box = useRef(null);
  const plot = useRef(null);
  const names = series.map((one) => one.name).join();
  const data = [times, ...series.map((one) => one.values)];
  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      const width = Math.max(box.current.clientWidth, 80);
      const line = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      plot.current = new globalThis.uPlot({
        width, height: HEIGHT, cursor: { show: false }, legend: { show: false }, padding: [8, 22, 0, 0],
        scales: { y: { range: (_, low, high) => [0, most ?? Math.max(high * 1.15, 1)] } },
        axes: [
          { ...line, space: 70, size: 24, incrs: STEPS, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 8)) },
          { ...line, size: 44, space: 34, values: (_, ticks) => ticks.map(short) },
        ],
        series: [{}, ...series.map((one, i) => ({
          stroke: style(`--series-${i + 1}`), width: 1.75, spanGaps: false, points: { show: false },
          fill: i === 0 ? faint(style("--series-1")) : undefined,
        }))],
      }, data, box.current);
    };
    draw();
    let width = box.current.clientWidth;
    const observer = new ResizeObserver(() => {
      if (box.current.clientWidth === width) return;
      width = box.current.clientWidth;
      plot.current.setSize({ width: Math.max(width, 80), height: HEIGHT });
    });
    observer.observe(box.current);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    addEventListener("theme", draw);
    return () => {
      observer.disconnect();
      theme.removeEventListener("change", draw);
      removeEventListener("theme", draw);
      plot.current.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data), [times.length, times.at(-1), names]);
  return html`<figure class="graph">
    <figcaption><span class="graph-title">${title}</span>
      <ul>${series.map((one, i) => html`<li key=${one.name}><${Dot} color=${`series-${i + 1}`} />${one.name} <b>${one.show(one.values.at(-1) ?? null)}</b></li>`)}</ul>
    </figcaption>
    <div class="plot" ref=${box} aria-hidden="true"></div>
  </figure>`;
}
