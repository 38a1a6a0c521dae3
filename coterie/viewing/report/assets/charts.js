"use strict";
// Curves by uPlot, with bands for intervals and a table of the numbers under each.
(() => {
  const C = window.Coterie;
  const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3], [1, 4], [12, 4]];
  const HEIGHT = 190;
  const LARGEST = 1e150; // of larger numbers differences are infinite: a gap
  const drawn = new Map(); // figure -> function that draws it again
  let axis = "step";
  let smooth = 1;

  const drawable = (value) => typeof value === "number" && Math.abs(value) <= LARGEST;
  const colour = (index) => C.theme.colour(`line-${index % 8}`);
  const faded = (text, share) => text.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

  // A line of a chart: {label, x, y, low, high}, of one run or of the seeds of one configuration: then also
  // counts, the seeds with a value at each point, and seeds.
  function lines(chart) {
    const { runs, groups } = C.data.main;
    const result = [];
    groups.forEach((group, groupIndex) => {
      if (chart.group !== undefined && chart.group !== groupIndex) return;
      const run = runs[group.runs[0]];
      chart.series.forEach((series, seriesIndex) => {
        const several = groups.length > 1 && chart.group === undefined;
        const more = group.runs.length - 1;
        const name = several ? `${run.label}${more ? ` and ${more} more ${more === 1 ? "seed" : "seeds"}` : ""}` : "";
        const base = {
          label: several ? (chart.series.length > 1 ? `${name}: ${series.label}` : name) : series.label,
          colour: several ? groupIndex : seriesIndex,
          dash: several ? seriesIndex : 0,
        };
        const band = group.bands?.[series.metric];
        if (band && group.runs.length > 1) {
          const tokens = tokensAt(run);
          const x = axis === "tokens" ? band.steps.map((step) => tokens.get(step) ?? null) : band.steps;
          const { mean: y, low, high, counts } = band;
          result.push({ ...base, x, y, low, high, counts, seeds: group.runs.length, gap: () => true });
          return;
        }
        const values = run.columns[series.metric];
        if (!values?.some(drawable)) return;
        const x = axis === "tokens" ? run.steps.map((step) => tokensAt(run).get(step) ?? null) : run.steps;
        const bounds = series.interval ? run.columns[series.interval] : null;
        const gaps = new Set(run.gaps[series.metric] ?? []);
        result.push({
          ...base,
          x,
          y: values,
          gap: (i) => typeof values[i] === "number" || gaps.has(run.steps[i]),
          low: bounds && bounds.map((pair) => (pair ? pair[0] : null)),
          high: bounds && bounds.map((pair) => (pair ? pair[1] : null)),
        });
      });
    });
    return result;
  }

  function tokensAt(run) {
    if (!run.tokensAt) {
      let total = 0;
      const known = run.columns["tokens/total"] ?? [];
      const made = run.columns["tokens/generated"] ?? [];
      run.tokensAt = new Map(run.steps.map((step, i) => [step, (total = known[i] ?? total + (made[i] ?? 0))]));
    }
    return run.tokensAt;
  }

  function smoothed(values) {
    if (smooth === 1) return values;
    const there = values.map((value, i) => [value, i]).filter(([value]) => drawable(value));
    if (there.length < smooth) return values;
    const result = values.map(() => null);
    const half = Math.floor(smooth / 2);
    there.forEach(([, i], at) => {
      const window = there.slice(Math.max(0, at - half), at + half + 1);
      result[i] = window.reduce((sum, [value]) => sum + value, 0) / window.length;
    });
    return result;
  }

  // Columns over the union of all x, as uPlot wants them: null is a gap of the line, undefined a place that only
  // other lines have, or at which no row names the metric.
  function aligned(all) {
    const xs = [...new Set(all.flatMap((line) => line.x.filter(drawable)))].sort((a, b) => a - b);
    const place = new Map(xs.map((x, i) => [x, i]));
    const on = (line, values) => {
      const column = Array(xs.length).fill(undefined);
      line.x.forEach((x, i) => {
        if (!drawable(x)) return;
        if (drawable(values[i])) column[place.get(x)] = values[i];
        else if (line.gap(i) || typeof values[i] === "number") column[place.get(x)] = null;
      });
      return column;
    };
    return { xs, on };
  }

  // Places of values without a neighbour, which no line and no band can show.
  function alone(column) {
    const there = column.map((value, i) => [value, i]).filter(([value]) => value !== undefined);
    const gap = (at) => (there[at]?.[0] ?? null) === null;
    return there.filter(([value], at) => value !== null && gap(at - 1) && gap(at + 1)).map(([, i]) => i);
  }

  // Intervals that no band shows: as bars.
  function bars(planned) {
    return (plot) => {
      const { ctx } = plot;
      ctx.save();
      for (const { data, stroke } of planned.bars) {
        const [high, low] = data;
        ctx.strokeStyle = faded(stroke, 0.7);
        ctx.lineWidth = 1.5 * devicePixelRatio;
        for (const i of alone(low)) {
          const x = plot.valToPos(planned.xs[i], "x", true);
          const [top, bottom] = [high[i], low[i]].map((value) => plot.valToPos(value, "y", true));
          const cap = 3 * devicePixelRatio;
          ctx.beginPath();
          for (const [fromX, fromY, toX, toY] of [[x, top, x, bottom], [x - cap, top, x + cap, top], [x - cap, bottom, x + cap, bottom]]) {
            ctx.moveTo(fromX, fromY);
            ctx.lineTo(toX, toY);
          }
          ctx.stroke();
        }
      }
      ctx.restore();
    };
  }

  function plan(chart) {
    const all = lines(chart);
    const { xs, on } = aligned(all);
    const data = [xs];
    const series = [{}];
    const bands = [];
    const shown = [];
    const bars = [];
    let below = null;
    // The first line is drawn last, so that it is on top.
    for (const line of chart.kind === "stack" ? all : [...all].reverse()) {
      const stroke = colour(line.colour);
      const raw = on(line, line.y);
      let column = chart.kind === "stack" ? raw : on(line, smoothed(line.y));
      if (chart.kind === "stack") {
        column = raw.map((value, i) => ((value ?? null) === null && !below ? null : (value ?? 0) + (below?.[i] ?? 0)));
        below = column;
      } else if (line.low) {
        data.push(on(line, line.high), on(line, line.low));
        series.push(...[0, 1].map(() => ({ show: true, stroke: "transparent", width: 0, points: { show: false } })));
        bars.push({ data: data.slice(-2), stroke });
        bands.push({ series: [data.length - 2, data.length - 1], fill: faded(stroke, 0.18) });
      } else if (smooth > 1) {
        data.push(raw);
        series.push({ stroke: faded(stroke, 0.28), width: 1, points: { show: false } });
      }
      const count = column.filter((value) => typeof value === "number").length;
      const lone = alone(column);
      data.push(column);
      series.push({
        label: line.label,
        stroke,
        width: chart.kind === "stack" ? 1 : count > 120 && !line.low ? 1.2 : 1.8,
        dash: DASHES[line.dash % DASHES.length],
        spanGaps: chart.kind === "stack",
        points: { show: count <= 40 && chart.kind !== "stack", size: 5, fill: stroke, filter: (_, __, all) => (all ? null : lone) },
      });
      if (chart.kind === "stack") {
        const before = shown.length ? shown[shown.length - 1].index : null;
        if (before === null) series[series.length - 1].fill = faded(stroke, 0.55);
        else bands.push({ series: [data.length - 1, before], fill: faded(stroke, 0.55) });
      }
      shown.push({ line, index: data.length - 1, raw: raw.map((value) => value ?? null), stroke });
    }
    if (chart.kind !== "stack") shown.reverse();
    return { data, series, bands, bars, shown, xs };
  }

  // As the line is: its colour and its dashes; a block of a stack.
  function swatch({ line, stroke }, stacked) {
    const dashes = DASHES[line.dash % DASHES.length].map((length) => length * 0.8).join(" ");
    const width = stacked ? 12 : 26;
    return C.s(
      "svg",
      { class: "swatch", width, height: 8, viewBox: `0 0 ${width} 8`, "aria-hidden": "true" },
      C.s("line", { x1: 0, x2: width, y1: 4, y2: 4, stroke, "stroke-width": stacked ? 6 : 2.5, "stroke-dasharray": dashes || null }),
    );
  }

  // " (1 of 3 seeds)" at a point that is the mean of fewer than all.
  function fewer(line, x) {
    const count = line.counts?.[line.x.indexOf(x)];
    return count && count < line.seeds ? ` (${count} of ${line.seeds} seeds)` : "";
  }

  function legend(shown, xs, stacked) {
    const values = shown.map(() => C.h("span", { class: "now" }));
    const list = C.h(
      "ul",
      { class: "legend" },
      shown.map((entry, i) => {
        return C.h("li", null, swatch(entry, stacked), C.h("span", { class: "name" }, entry.line.label), values[i]);
      }),
    );
    const at = (index) => {
      shown.forEach((entry, i) => {
        let place = index;
        if (place === null) place = entry.raw.findLastIndex((value) => value !== null);
        const value = place >= 0 ? entry.raw[place] : null;
        values[i].textContent = value === null || value === undefined ? "–" : C.text.number(value) + fewer(entry.line, xs[place]);
      });
    };
    at(null);
    return { list, at };
  }

  function options(chart, planned, width, at) {
    const ink = C.theme.colour("muted");
    const grid = { stroke: C.theme.colour("grid"), width: 1 };
    const share = chart.unit === "share";
    const values = (_, ticks) => ticks.map((tick) => (tick === null ? "" : compact(tick)));
    const common = { stroke: ink, grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width,
      height: HEIGHT,
      padding: [8, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 } },
      scales: {
        x: { time: false },
        y: {
          range: (_, low, high) => {
            if (low === null) return [0, 1];
            if (share) return [Math.min(0, low), Math.max(high * 1.05, 0.05)];
            const room = (high - low || Math.abs(high) || 1) * 0.06;
            return [low >= 0 && low < high * 0.6 ? 0 : low - room, high + room];
          },
        },
      },
      axes: [
        { ...common, values, size: 30, grid: { show: false } },
        { ...common, values, size: 52 },
      ],
      series: planned.series,
      bands: planned.bands,
      hooks: { setCursor: [(plot) => at(plot.cursor.idx ?? null)], draw: [bars(planned)] },
    };
  }

  function compact(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
    if (size !== 0 && size < 1e-3) return value.toExponential(0);
    return String(Number(value.toPrecision(4)));
  }

  function numbers(planned, chart) {
    const rows = planned.xs.map((x, i) => [
      String(x),
      ...planned.shown.flatMap(({ line }) => {
        const place = line.x.indexOf(x);
        const whole = line.y[place] ?? null;
        const value = place < 0 || whole === null ? "" : String(whole) + fewer(line, x);
        if (!line.low) return [value];
        const bound = (of) => (place < 0 || of[place] === null || of[place] === undefined ? "" : String(of[place]));
        return [value, bound(line.low), bound(line.high)];
      }),
    ]);
    const head = planned.shown.flatMap(({ line }) => (line.low ? [line.label, "from", "to"] : [line.label]));
    return C.table([axis, ...head], rows.filter((row) => row.slice(1).some((cell) => cell !== "")), `Numbers of ${chart.title}`);
  }

  function meaning(chart) {
    const metrics = C.data.main.metrics;
    return [...new Set(chart.series.map((series) => metrics[series.metric]?.meaning).filter(Boolean))].join(" ");
  }

  // The figure of a chart; null: no run has a number for it.
  function figure(chart) {
    if (!lines(chart).length) return null;
    const place = C.h("div", { class: "plot" });
    const names = C.h("div");
    const rows = C.h("div");
    const table = C.h("details", { class: "numbers" }, C.h("summary", null, "numbers"), rows);
    const element = C.h(
      "figure",
      { class: "chart", "data-chart": chart.id },
      C.h(
        "figcaption",
        { title: meaning(chart) },
        C.h("span", { class: "chart-title" }, chart.title),
        C.h("span", { class: "unit" }, chart.unit === "any" ? "" : chart.unit),
      ),
      place,
      names,
      chart.note ? C.h("p", { class: "chart-note" }, chart.note) : null,
      table,
    );
    let plot = null;
    let planned = null;
    const draw = () => {
      const width = Math.floor(place.clientWidth);
      if (!width) return;
      planned = plan(chart);
      const { list, at } = legend(planned.shown, planned.xs, chart.kind === "stack");
      C.fill(names, list);
      plot?.destroy();
      plot = new uPlot(options(chart, planned, width, at), planned.data, place);
      place.setAttribute("role", "img");
      place.setAttribute("aria-label", C.text.visible(spoken(chart, planned)));
      if (table.open) C.fill(rows, numbers(planned, chart));
    };
    table.addEventListener("toggle", () => C.fill(rows, table.open && planned ? numbers(planned, chart) : null));
    let width = 0;
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - width) < 2) return;
      width = place.clientWidth;
      draw();
    }).observe(place);
    drawn.set(element, draw);
    return element;
  }

  function spoken(chart, { shown }) {
    const ends = shown.map(({ line, raw }) => {
      const there = raw.filter((value) => value !== null);
      return `${line.label} from ${C.text.number(there[0])} to ${C.text.number(there[there.length - 1])}`;
    });
    return `${chart.title}: ${ends.join("; ")}. The numbers are in the table below.`;
  }

  function again() {
    for (const [element, draw] of drawn) {
      if (element.isConnected) draw();
      else drawn.delete(element);
    }
  }

  // What is stacked is one configuration's: of several, each has a chart.
  function ofEach(chart) {
    const { groups, runs } = C.data.main;
    if (chart.kind !== "stack" || groups.length < 2) return [chart];
    return groups.map((of, group) => ({ ...chart, group, id: `${chart.id}-${group}`, title: `${chart.title}: ${runs[of.runs[0]].label}` }));
  }

  C.charts = {
    figure,
    again,
    start() {
      for (const view of ["overview", "roles"]) {
        const of = C.data.main.charts.filter((chart) => chart.view === view);
        C.fill(C.get(`charts-${view}`), of.flatMap(ofEach).map(figure));
      }
      C.get("axis").addEventListener("change", (event) => {
        axis = event.target.value;
        again();
      });
      C.get("smooth").addEventListener("change", (event) => {
        smooth = Number(event.target.value);
        again();
      });
      C.theme.onChange(again);
    },
  };
})();
