// Places for the nodes of a directed graph: columns from left to right, so that edges lead to the right. Edges that
// close a cycle are `back`. Pure.

/** `edges` are pairs of names. Returns the places by name, the numbers of columns and rows, and the indexes of back edges. */
export function layers(edges) {
  const names = [...new Set(edges.flat())].sort();
  const out = new Map(names.map((name) => [name, []]));
  edges.forEach(([from], i) => out.get(from).push(i));
  const back = new Set();
  const state = new Map();
  const order = [];
  for (const root of names) {
    if (state.has(root)) continue;
    const path = [[root, 0]];
    state.set(root, "open");
    while (path.length > 0) {
      const top = path.at(-1);
      const edge = out.get(top[0])[top[1]];
      if (edge === undefined) {
        state.set(top[0], "done");
        order.push(top[0]);
        path.pop();
        continue;
      }
      top[1] += 1;
      const to = edges[edge][1];
      if (state.get(to) === "open") back.add(edge);
      else if (!state.has(to)) {
        state.set(to, "open");
        path.push([to, 0]);
      }
    }
  }
  const column = new Map(names.map((name) => [name, 0]));
  for (const name of order.reverse()) {
    for (const edge of out.get(name)) {
      const to = edges[edge][1];
      if (!back.has(edge)) column.set(to, Math.max(column.get(to), column.get(name) + 1));
    }
  }
  const places = new Map();
  const filled = [];
  const above = (name) => {
    const rows = edges.filter(([from, to], i) => to === name && !back.has(i) && places.has(from)).map(([from]) => places.get(from).row);
    return rows.length === 0 ? Infinity : rows.reduce((sum, row) => sum + row, 0) / rows.length;
  };
  for (let at = 0; at <= Math.max(...column.values()); at += 1) {
    const here = names.filter((name) => column.get(name) === at).map((name) => [above(name), name]);
    here.sort(([a, one], [b, other]) => (a === b ? (one < other ? -1 : 1) : a - b));
    for (const [, name] of here) {
      filled[at] = (filled[at] ?? -1) + 1;
      places.set(name, { column: at, row: filled[at] });
    }
  }
  return { places, columns: filled.length, rows: Math.max(...filled) + 1, back };
}
