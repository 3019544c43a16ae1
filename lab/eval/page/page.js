// Draws the figures of the page from the summary in #data. Text from the report
// reaches the document only as text nodes, never as markup.
"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const policies = new Map(data.policies.map((p) => [p.name, p]));
  // Policies that the reader hid.
  const hidden = new Set();

  // One symbol for each slot of policies.go, beside the colours in page.css.
  const symbols = [
    "square", "triangle", "wye", "circle", "diamond", "cross", "star", "circle",
    "circle", "square", "triangle", "diamond", "star", "wye", "cross", "circle",
    "triangle", "square",
  ];
  const symbolOf = (name) => symbols[policies.get(name).slot];
  const colourOf = (name) => `var(--p${policies.get(name).slot})`;
  // A bound is hollow and dashed.
  const fillOf = (name) => (policies.get(name).bound ? "var(--paper)" : colourOf(name));
  const widthOf = (name) => (policies.get(name).strong ? 3 : 1.6);

  const metrics = {
    bytes: { title: "Bytes", unit: "× default", ratio: true },
    startup: { title: "Start-up mean", unit: "× default", ratio: true },
    p99: { title: "Start-up p99", unit: "× default", ratio: true },
    cpu: { title: "CPU std. dev.", unit: "", ratio: false },
  };
  const labelOf = (key) => [metrics[key].title, metrics[key].unit].filter(Boolean).join(", ");
  // What both gains and costs are seen in.
  const shown = ["bytes", "startup", "cpu"];

  const valueOf = (cell, key) => ({ mean: cell.values[key][0], low: cell.values[key][1], high: cell.values[key][2] });
  const round = (v) => v.toLocaleString("en", { maximumSignificantDigits: 3 });
  const seconds = (v) => (v >= 100 ? d3.format(",.0f")(v) : round(v)) + " s";
  const shorten = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
  const largest = (values, otherwise) => d3.max(values.filter((v) => v !== null)) ?? otherwise;

  // element makes an HTML element with properties and children (nodes or text).
  function element(name, properties = {}, ...children) {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  }

  // describe is the text of a tooltip.
  function describe(cell, group, experiment) {
    const lines = [shorten(cell.policy, 60)];
    lines.push(shorten(group.scenario, 60));
    if (experiment.axis) lines.push(`${shorten(experiment.axis, 40)} ${cell.x}`);
    for (const key of ["bytes", "startup", "p99", "cpu"]) {
      const { mean, low, high } = valueOf(cell, key);
      if (mean === null) continue;
      const interval = low === null ? "" : ` (${round(low)} to ${round(high)})`;
      lines.push(`${metrics[key].title}: ${round(mean)}${metrics[key].ratio ? " ×" : ""}${interval}`);
    }
    lines.push(cell.seeds === 1 ? "1 seed" : `${cell.seeds} seeds`);
    return lines.join("\n");
  }

  // draw is Plot.plot with what all panels have in common.
  function draw(label, options) {
    const svg = Plot.plot({ ...options, ariaLabel: label, color: { type: "identity" }, marks: options.marks.filter(Boolean) });
    svg.setAttribute("role", "img");
    return svg;
  }

  const tip = (rows, options) => Plot.tip(rows, Plot.pointer({ maxRadius: 30, lineWidth: 40, fontSize: 12, lineHeight: 1.3, stroke: "var(--muted)", ...options }));

  // rowsOf flattens groups: one row for each visible cell that has the values.
  function rowsOf(groups, experiment, keys) {
    return groups.flatMap((group) =>
      group.cells
        .filter((cell) => !hidden.has(cell.policy) && keys.every((key) => cell.values[key][0] !== null))
        .map((cell) => ({ ...cell, scenario: group.scenario, group: group, title: describe(cell, group, experiment) })));
  }

  const scenariosOf = (experiment) => [...new Set(experiment.groups.map((g) => g.scenario))];
  const policiesOf = (experiment) => {
    const ran = new Set(experiment.groups.flatMap((g) => g.cells.map((c) => c.policy)));
    return data.policies.map((p) => p.name).filter((name) => ran.has(name));
  };
  // The strong one last, so that it lies on top.
  const byPolicy = (rows) =>
    [...d3.group(rows, (r) => r.policy)].sort((a, b) => policies.get(a[0]).strong - policies.get(b[0]).strong);

  // domainOf is an axis from 0, the same in all panels and whatever is hidden.
  function domainOf(experiment, key) {
    const values = experiment.groups.flatMap((g) => g.cells.flatMap((c) => c.values[key].slice(0, 3)));
    return [0, Math.max(metrics[key].ratio ? 1.05 : 0, largest(values, 1) * 1.03) || 1];
  }

  // extentOf is an axis that shows the differences, for figures of points.
  function extentOf(experiment, key) {
    const [least, most] = d3.extent(experiment.groups.flatMap((g) => g.cells.flatMap((c) => c.values[key].slice(0, 3).filter((v) => v !== null))));
    if (least === undefined) return [0, 1];
    const margin = (most - least) * 0.12 || 0.1;
    return [Math.max(0, least - margin), most + margin];
  }

  const dots = (name, rows, options) =>
    Plot.dot(rows, {
      symbol: symbolOf(name), fill: fillOf(name), stroke: policies.get(name).bound ? colourOf(name) : "var(--paper)",
      strokeWidth: policies.get(name).bound ? 1.5 : 0.75, r: policies.get(name).strong ? 5.5 : 4, ...options,
    });

  // ---- Figures. Each is { title, note, columns(width), panels(width, column) }. ----

  // forest: every policy in every scenario, one panel a metric.
  function forest(experiment) {
    const scenarios = scenariosOf(experiment);
    const names = policiesOf(experiment);
    const keys = shown.filter((key) => experiment.groups.some((g) => g.cells.some((c) => c.values[key][0] !== null)));
    return {
      title: "Every policy in every scenario",
      note: "Further left is better. Bars are 95 % confidence intervals.",
      least: 300,
      most: keys.length,
      lead: 190,
      panels: (width, columns, lead) => {
        const visible = names.filter((name) => !hidden.has(name));
        // A scenario is a row for each policy below its name.
        const [row, head] = [17, 30];
        const step = visible.length * row + head;
        return keys.map((key, i) => {
          const first = i % columns === 0;
          const rows = rowsOf(experiment.groups, experiment, [key]).map((r) => ({ ...r, ...valueOf(r, key) }));
          const place = { fy: "scenario", y: "policy" };
          return {
            title: labelOf(key),
            indent: first ? lead : 8,
            svg: draw(`${labelOf(key)} of every policy in every scenario`, {
              width: width + (first ? lead : 0),
              height: scenarios.length * step + 44,
              marginLeft: first ? lead : 8, marginRight: 16, marginTop: head, marginBottom: 44,
              x: { domain: domainOf(experiment, key), label: labelOf(key), labelAnchor: "center", labelArrow: "none", labelOffset: 38, grid: true, ticks: 5, tickSize: 0 },
              y: { domain: visible, axis: null },
              fy: { domain: scenarios, axis: null, paddingInner: head / step, paddingOuter: 0 },
              marks: [
                metrics[key].ratio && Plot.ruleX([1], { stroke: "var(--p0)", strokeWidth: 1.25 }),
                first && Plot.axisY({ tickSize: 0, label: null, fontSize: 11, tickFormat: (name) => shorten(name, Math.floor(lead / 6.8)) }),
                Plot.text(scenarios, {
                  fy: (d) => d, text: (d) => (first ? shorten(d, 70) : ""), frameAnchor: "top-left", textAnchor: "start",
                  dx: first ? -lead : 0, dy: -17, fontWeight: 600, fontSize: 12, fill: "currentColor",
                }),
                ...byPolicy(rows).flatMap(([name, own]) => [
                  Plot.ruleY(own.filter((r) => r.low !== null), { ...place, x1: "low", x2: "high", stroke: colourOf(name), strokeWidth: widthOf(name) }),
                  dots(name, own, { ...place, x: "mean" }),
                ]),
                tip(rows, { ...place, x: "mean", title: "title" }),
              ],
            }),
          };
        });
      },
    };
  }

  // gains: metrics over the axis, one line a policy.
  function gains(experiment) {
    const xs = [...new Set(experiment.groups.map((g) => g.x))].sort(d3.ascending);
    const keys = shown.filter((key) => experiment.groups.some((g) => g.cells.some((c) => c.values[key][0] !== null)));
    const x = {
      type: experiment.log && xs[0] > 0 ? "log" : "linear", label: shorten(experiment.axis, 60), labelAnchor: "center", labelArrow: "none",
      ...(xs.length <= 8 ? { ticks: xs } : {}), tickFormat: (v) => v.toLocaleString("en"), tickSize: 4,
    };
    return {
      title: `Gain and cost over ${experiment.axis}`,
      note: "Lower is better. Bands are 95 % confidence intervals.",
      least: 280,
      most: keys.length,
      panels: (width) =>
        scenariosOf(experiment).flatMap((scenario) =>
          keys.map((key) => {
            const groups = experiment.groups.filter((g) => g.scenario === scenario);
            const rows = rowsOf(groups, experiment, [key]).map((r) => ({ ...r, ...valueOf(r, key) }));
            return {
              title: scenario,
              subtitle: labelOf(key),
              svg: draw(`${labelOf(key)} over ${experiment.axis}, ${scenario}`, {
                width, height: 260, marginLeft: 36, marginRight: 14, marginTop: 14, marginBottom: 38, insetLeft: 8, insetRight: 8, x,
                y: { domain: domainOf(experiment, key), label: null, grid: true, ticks: 5, tickSize: 0 },
                marks: [
                  metrics[key].ratio && Plot.ruleY([1], { stroke: "var(--p0)", strokeWidth: 1.25 }),
                  Plot.ruleY([0], { stroke: "var(--line)" }),
                  ...byPolicy(rows).flatMap(([name, own]) => [
                    Plot.areaY(own.filter((r) => r.low !== null), { x: "x", y1: "low", y2: "high", fill: colourOf(name), fillOpacity: 0.15 }),
                    Plot.line(own, { x: "x", y: "mean", stroke: colourOf(name), strokeWidth: widthOf(name), strokeDasharray: policies.get(name).bound ? "4 3" : null }),
                    dots(name, own, { x: "x", y: "mean" }),
                  ]),
                  tip(rows, { x: "x", y: "mean", title: "title" }),
                ],
              }),
            };
          })),
    };
  }

  // frontier: bytes against balance. Settings of one policy are joined.
  function frontier(experiment) {
    const setting = experiment.axis;
    const [x, y] = ["cpu", "bytes"];
    return {
      title: "Bytes against balance",
      note: `Lower left is better. A line joins what one policy reaches with different settings; its numbers are: ${setting}. Bars are 95 % confidence intervals.`,
      least: 420,
      most: 2,
      panels: (width) =>
        scenariosOf(experiment).map((scenario) => {
          const groups = experiment.groups.filter((g) => g.scenario === scenario);
          const rows = rowsOf(groups, experiment, [x, y]).map((r) => ({ ...r, cx: valueOf(r, x), cy: valueOf(r, y) }));
          const at = { x: (r) => r.cx.mean, y: (r) => r.cy.mean };
          return {
            title: scenario,
            svg: draw(`${labelOf(y)} against ${labelOf(x)}, ${scenario}`, {
              width, height: Math.max(300, Math.min(480, width * 0.72)), marginLeft: 36, marginRight: 16, marginTop: 26, marginBottom: 38,
              x: { domain: extentOf(experiment, x), label: labelOf(x), labelAnchor: "center", labelArrow: "none", grid: true, ticks: 6, tickSize: 0 },
              y: { domain: extentOf(experiment, y), label: labelOf(y), labelArrow: "none", grid: true, ticks: 6, tickSize: 0 },
              marks: [
                Plot.text(["↙ better"], { frameAnchor: "bottom-left", dx: 6, dy: -6, fill: "var(--muted)" }),
                ...byPolicy(rows).flatMap(([name, own]) => [
                  Plot.ruleX(own.filter((r) => r.cy.low !== null), { ...at, y1: (r) => r.cy.low, y2: (r) => r.cy.high, stroke: colourOf(name), strokeOpacity: 0.45 }),
                  Plot.ruleY(own.filter((r) => r.cx.low !== null), { ...at, x1: (r) => r.cx.low, x2: (r) => r.cx.high, stroke: colourOf(name), strokeOpacity: 0.45 }),
                  own.length > 1 && Plot.line(own, { ...at, stroke: colourOf(name), strokeWidth: widthOf(name), strokeDasharray: policies.get(name).bound ? "4 3" : null }),
                  dots(name, own, at),
                ]),
                (_, scales, __, dimensions) => labels(byPolicy(rows), (r) => [scales.x(r.cx.mean), scales.y(r.cy.mean)], dimensions),
                tip(rows, { ...at, title: "title" }),
              ],
            }),
          };
        }),
    };
  }

  // labels puts the name of each policy beside one of its points, and settings
  // beside theirs, where they cover no point, no line and no other label. A
  // setting that finds no place is left out: the tooltip has it.
  function labels(curves, positionOf, { width, height, marginLeft, marginTop, marginRight, marginBottom }) {
    const canvas = document.createElement("canvas").getContext("2d");
    const taken = [];
    for (const [, rows] of curves) {
      rows.map(positionOf).forEach(([x, y], i, all) => {
        taken.push([x - 6, y - 6, x + 6, y + 6]);
        if (i === 0) return;
        const [fromX, fromY] = all[i - 1];
        const steps = Math.ceil(Math.hypot(x - fromX, y - fromY) / 6);
        for (let k = 1; k < steps; k++) {
          const [px, py] = [fromX + ((x - fromX) * k) / steps, fromY + ((y - fromY) * k) / steps];
          taken.push([px - 2, py - 2, px + 2, py + 2]);
        }
      });
    }
    const free = ([x1, y1, x2, y2]) =>
      x1 > marginLeft && y1 > marginTop - 6 && x2 < width - marginRight + 8 && y2 < height - marginBottom &&
      taken.every(([a1, b1, a2, b2]) => x2 < a1 || a2 < x1 || y2 < b1 || b2 < y1);
    const layer = d3.create("svg:g").attr("aria-label", "label").attr("font-size", 11).attr("text-anchor", "start");

    function place(text, points, weight, colour, distances) {
      canvas.font = `${weight} 11px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif`;
      const w = canvas.measureText(text).width + 2;
      const h = 12;
      for (const d of distances) {
        for (const [x, y] of points) {
          const corners = [[d, -h / 2], [-d - w, -h / 2], [-w / 2, -d - h], [-w / 2, d], [d * 0.7, -d * 0.7 - h], [d * 0.7, d * 0.7], [-d * 0.7 - w, -d * 0.7 - h], [-d * 0.7 - w, d * 0.7]];
          for (const [dx, dy] of corners) {
            const box = [x + dx, y + dy, x + dx + w, y + dy + h];
            if (!free(box)) continue;
            taken.push(box);
            if (d > 16) {
              // Too far to be clear: a line leads there.
              const [ex, ey] = [Math.max(box[0], Math.min(x, box[2])), Math.max(box[1], Math.min(y, box[3]))];
              layer.append("path").attr("d", `M${x},${y}L${ex},${ey}`).attr("stroke", colour).attr("stroke-width", 0.75);
            }
            layer.append("text").attr("x", box[0] + 1).attr("y", box[1] + 10).attr("font-weight", weight).attr("fill", "currentColor")
              .attr("stroke", "var(--paper)").attr("stroke-width", 3).attr("paint-order", "stroke").attr("stroke-linejoin", "round").text(text);
            return;
          }
        }
      }
    }
    // The strong one is last of the curves, and first to choose.
    for (const [name, rows] of [...curves].reverse()) {
      const points = rows.map(positionOf);
      // A name stands best at an end of the curve.
      const ends = points.length > 1 ? [points[0], points.at(-1), ...points.slice(1, -1)] : points;
      place(shorten(name, 32), ends, policies.get(name).strong ? 700 : 500, colourOf(name), [8, 12, 16, 24, 36, 52, 72]);
    }
    for (const [name, rows] of [...curves].reverse()) {
      if (rows.length > 1) rows.forEach((r) => place(String(r.x), [positionOf(r)], 400, colourOf(name), [7, 10]));
    }
    return layer.node();
  }

  // curve of a cell's quantiles: from the last that is below the floor to the end.
  function curve(cell, floor, end) {
    const start = Math.max(0, cell.quantiles.findLastIndex((q) => q <= floor));
    const points = cell.quantiles.map((q, i) => ({
      policy: cell.policy, time: Math.max(floor, q), share: i / 100,
      title: `${shorten(cell.policy, 60)}\n${i} % of the pods within ${seconds(q)}`,
    }));
    return [...points.slice(start), { ...points.at(-1), time: end }];
  }

  // distributions: which share of the pods has started after which time.
  function distributions(experiment) {
    const groups = experiment.groups.filter((g) => g.cells.some((c) => c.quantiles));
    if (groups.length === 0) return null;
    const times = groups.flatMap((g) => g.cells.flatMap((c) => c.quantiles ?? []));
    const most = largest(times, 1) || 1;
    // A logarithmic axis has no 0: what is less than this is drawn here.
    const least = d3.min(times.filter((t) => t !== null && t > most / 1e4)) ?? most / 10;
    const floor = 10 ** Math.min(Math.floor(Math.log10(least)), Math.ceil(Math.log10(most)) - 1);
    const end = Math.max(most, floor * 10);
    const ticks = d3.range(Math.log10(floor), Math.log10(end) + 1e-9).map((e) => 10 ** Math.round(e));
    return {
      title: "Start-up times",
      note: `Share of pods that started within a time. Further up and left is better. Times below ${seconds(floor)}, and pods that had nothing to wait for, are drawn at ${seconds(floor)}. Quantiles are means over seeds.`,
      least: 300,
      most: 3,
      panels: (width) =>
        groups.map((group) => {
          const rows = group.cells
            .filter((c) => c.quantiles && !hidden.has(c.policy))
            .flatMap((c) => curve(c, floor, end));
          const name = experiment.shape === "varied" ? `${group.scenario}, ${experiment.axis} ${group.x}` : group.scenario;
          return {
            title: name,
            svg: draw(`Start-up times, ${name}`, {
              width, height: 240, marginLeft: 40, marginRight: 14, marginTop: 14, marginBottom: 38,
              x: { type: "log", domain: [floor, end], label: "seconds (logarithmic)", labelAnchor: "center", labelArrow: "none", ticks, tickFormat: (v) => v.toLocaleString("en"), grid: true, tickSize: 0 },
              y: { domain: [0, 1], label: null, tickFormat: "%", grid: true, ticks: 5, tickSize: 0 },
              marks: [
                ...byPolicy(rows).map(([policy, own]) =>
                  Plot.line(own, { x: "time", y: "share", stroke: colourOf(policy), strokeWidth: widthOf(policy), strokeDasharray: policies.get(policy).bound ? "4 3" : null })),
                tip(rows, { x: "time", y: "share", title: "title" }),
              ],
            }),
          };
        }),
    };
  }

  const figuresOf = (experiment) =>
    ({
      plain: [forest, distributions],
      varied: [gains, distributions],
      tuned: [frontier],
    })[experiment.shape].map((make) => make(experiment)).filter(Boolean);

  // ---- The page ----

  // fillKeys draws the symbols beside the names of policies.
  function fillKeys(root) {
    for (const key of root.querySelectorAll("svg.key:empty")) {
      const { slot, bound } = data.policies.find((p) => p.slot === Number(key.dataset.slot));
      const type = d3[`symbol${symbols[slot][0].toUpperCase()}${symbols[slot].slice(1)}`];
      d3.select(key).append("path").attr("d", d3.symbol(type, 120)())
        .attr("fill", bound ? "none" : `var(--p${slot})`).attr("stroke", bound ? `var(--p${slot})` : null).attr("stroke-width", bound ? 2 : null);
    }
  }

  function legend(experiment) {
    const list = element("div", { className: "legend" });
    for (const name of policiesOf(experiment)) {
      const key = d3.create("svg:svg").attr("class", "key").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true").attr("data-slot", policies.get(name).slot);
      const button = element("button", { type: "button", title: "Show or hide" }, key.node(), shorten(name, 60));
      button.dataset.policy = name;
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        for (const other of document.querySelectorAll(".legend button")) {
          if (other.dataset.policy === name) other.setAttribute("aria-pressed", String(!hidden.has(name)));
        }
        renderers.forEach((render) => render());
      });
      list.append(button);
    }
    fillKeys(list);
    return list;
  }

  const renderers = [];
  function add(container, experiment, figure) {
    const panels = element("div", { className: "panels" });
    container.append(element("figure", {},
      element("figcaption", {}, figure.title, element("small", {}, figure.note)), legend(experiment), panels));
    let width = 0;
    const render = () => {
      const gap = 24;
      const lead = figure.lead ? Math.min(figure.lead, width * 0.4) : 0;
      const columns = Math.max(1, Math.min(figure.most, Math.floor((width - lead + gap) / (figure.least + gap))));
      const each = Math.floor((width - lead - (columns - 1) * gap) / columns);
      // Shares, not pixels: paper may be narrower.
      panels.style.gridTemplateColumns = `minmax(0, ${each + lead}fr) ${`minmax(0, ${each}fr) `.repeat(columns - 1)}`;
      panels.replaceChildren(...figure.panels(each, columns, lead).map(({ title, subtitle, indent, svg }) => {
        const heading = element("h4", {}, title, ...(subtitle ? [element("small", {}, subtitle)] : []));
        heading.style.marginLeft = `${indent ?? 0}px`;
        return element("div", { className: "panel" }, heading, svg);
      }));
    };
    renderers.push(render);
    new ResizeObserver(([entry]) => {
      const now = Math.floor(entry.contentRect.width);
      if (now > 0 && now !== width) {
        width = now;
        render();
      }
    }).observe(panels);
  }

  fillKeys(document);
  for (const container of document.querySelectorAll(".figures")) {
    const experiment = data.experiments[container.dataset.experiment];
    figuresOf(experiment).forEach((figure) => add(container, experiment, figure));
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      } catch {
        getSelection().selectAllChildren(code); // to be copied by hand
      }
    });
  }

  // On paper all tables are open.
  addEventListener("beforeprint", () => {
    for (const table of document.querySelectorAll("details.numbers:not([open])")) {
      table.open = true;
      addEventListener("afterprint", () => (table.open = false), { once: true });
    }
  });
}
