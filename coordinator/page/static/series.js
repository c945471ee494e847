// A run over time: charts of step time, parts, throughput and MFU (uPlot), and its incidents on the same axis.
"use strict";

(() => {
  const find = id => document.getElementById(id);
  const box = find("charts"), lanes = find("lanes"), range = find("range"), note = find("series-note"), at = find("series-at");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const GAP_S = 2, WAIT_MS = 4000, LANE = 26, SYNC = "series";
  const PARTS = { data: 0, forward: 1, backward: 2, optimizer: 3, compute: 1, host: 7, gc: 6 }; // with their colours
  const steps = uPlot.paths.stepped({ align: 1 });
  let known = null, charts = [], asked = 0, isAsking = false, waiting = null, zoom = null, isSetting = false;

  const seconds = value => value == null ? "-" : value >= 10 ? `${value.toFixed(1)} s` : value >= 1 ? `${value.toFixed(2)} s`
    : value >= 0.001 ? `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms` : `${(value * 1e6).toFixed(0)} µs`;
  const rate = value => value == null ? "-" : value >= 1e9 ? `${(value / 1e9).toFixed(2)} G` : value >= 1e6 ? `${(value / 1e6).toFixed(2)} M`
    : value >= 1e4 ? `${(value / 1e3).toFixed(1)} k` : value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  const percent = value => value == null ? "-" : `${(value * 100).toFixed(1)} %`;
  const two = value => String(value).padStart(2, "0");

  function clock(unix, span) {
    const when = new Date(unix * 1000), day = `${two(when.getUTCMonth() + 1)}-${two(when.getUTCDate())}`;
    const time = `${two(when.getUTCHours())}:${two(when.getUTCMinutes())}`;
    if (span > 2 * 86400) return span > 10 * 86400 ? day : `${day} ${time}`;
    return span < 900 ? `${time}:${two(when.getUTCSeconds())}` : time;
  }

  const isGap = (before, point) => point.attempt !== before.attempt
    || point.begin_unix_seconds - before.end_unix_seconds > Math.max(GAP_S, (before.end_unix_seconds - before.begin_unix_seconds) / 2);

  // A value applies from the begin of its interval to that of the next one (the last one to its end); null at a pause.
  function columns(points, pick) {
    const values = [];
    points.forEach((point, place) => {
      if (place && isGap(points[place - 1], point)) values.push(null);
      values.push(pick(point) ?? null);
    });
    return [...values, values.at(-1)];
  }

  function times(points) {
    const values = [];
    points.forEach((point, place) => {
      if (place && isGap(points[place - 1], point)) values.push(points[place - 1].end_unix_seconds);
      values.push(point.begin_unix_seconds);
    });
    return [...values, points.at(-1).end_unix_seconds];
  }

  // --- charts

  function series(points) {
    const usual = known.baseline_step_seconds, made = [];
    made.push({ title: "Step time", text: seconds, lines: [
      { label: "mean", pick: point => point.step_seconds, colour: "--c0", width: 2 },
      { label: "longest", pick: point => point.longest_step_seconds, colour: "--c7", width: 1 },
      ...(usual ? [{ label: "healthy", pick: () => usual, colour: "--c2", width: 1, dash: [6, 4] }] : []) ] });
    const names = new Set(points.flatMap(point => Object.keys(point.part_seconds)));
    const isLong = name => points.some(point => (point.part_seconds[name] ?? 0) > 0.01 * point.step_seconds);
    const own = Object.keys(PARTS).filter(name => names.has(name)), waits = [...names].filter(name => name.endsWith("_wait")).sort();
    const line = (name, more) => ({ label: name.replace("_", " "), pick: point => point.part_seconds[name], ...more });
    made.push({ title: "Parts of the step, mean rank", text: seconds, lines: [
      ...own.filter(isLong).map(name => line(name, { width: 1.5, colour: `--c${PARTS[name]}` })),
      ...waits.filter(isLong).map((name, place) => line(name, { width: 2, dash: [7, 3], colour: `--c${[4, 5, 0, 2, 3, 6][place % 6]}` })) ] });
    const units = [["tokens_per_second", "tokens/s"], ["samples_per_second", "samples/s"]];
    const [field, unit] = units.find(([each]) => points.some(point => point[each] != null)) ?? [null, "steps/s"];
    made.push({ title: `Throughput, ${unit}`, text: rate, lines: [{ label: unit, colour: "--c2", width: 2,
      pick: point => field ? point[field] : 1 / point.step_seconds }] });
    if (points.some(point => point.mfu_ratio != null)) {
      made.push({ title: "MFU", text: percent, lines: [{ label: "MFU", colour: "--c3", width: 2, pick: point => point.mfu_ratio }] });
    }
    return made.filter(each => each.lines.length);
  }

  // From 0; a single outlier (a compilation, a checkpoint) exceeds the scale rather than flatten all others.
  function height(chart) {
    const [low, high] = [chart.scales.x.min, chart.scales.x.max], all = [];
    chart.data.slice(1).forEach((values, line) => chart.series[line + 1].show && values.forEach((value, place) => {
      if (value != null && chart.data[0][place] >= low && chart.data[0][place] <= high) all.push(value);
    }));
    if (!all.length) return [0, 1];
    all.sort((one, other) => one - other);
    const most = all.at(-1), usual = all[Math.floor(0.9 * (all.length - 1))];
    return [0, (usual ? Math.min(most, 3 * usual) : most || 1) * 1.08];
  }

  function build() {
    const points = known.points, style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    const wanted = series(points), x = times(points);
    box.dataset.gaps = x.length - 1 - points.length;
    for (const each of charts) each.destroy();
    box.replaceChildren();
    charts = wanted.map(each => {
      const frame = document.createElement("div"), title = document.createElement("h3");
      title.textContent = each.title;
      frame.append(title);
      box.append(frame);
      const axis = { stroke: colour("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 } };
      return new uPlot({
        width: box.clientWidth, height: 170, padding: [6, 10, 0, 0],
        cursor: { sync: { key: SYNC }, y: false, drag: { x: true, y: false }, points: { size: 7 } },
        scales: { x: { time: true, range: (_, min, max) => [min, max] }, y: { range: chart => height(chart) } },
        axes: [
          { ...axis, space: 60, size: 30, values: (chart, splits) => splits.map(split => clock(split, chart.scales.x.max - chart.scales.x.min)) },
          { ...axis, space: 34, size: 62, values: (_, splits) => splits.map(value => value ? each.text(value) : "0") },
        ],
        tzDate: unix => uPlot.tzDate(new Date(unix * 1000), "Etc/UTC"),
        series: [{ label: "time", value: (_, unix) => unix == null ? "-" : `${clock(unix, 0)} UTC` },
          ...each.lines.map(line => ({ label: line.label, stroke: colour(line.colour), width: line.width, dash: line.dash, paths: steps,
            value: (_, value) => value == null ? "" : each.text(value) }))],
        hooks: { setScale: [(chart, key) => { if (key === "x") follow(chart); }], drawClear: [shade], setCursor: [showValues] },
      }, [x, ...each.lines.map(line => columns(points, line.pick))], frame);
    });
    apply();
  }

  // --- a common time range for all charts and lanes

  const ends = () => [known.points[0].begin_unix_seconds, known.points.at(-1).end_unix_seconds];

  function apply() {
    const [first, last] = ends(), span = Number(range.value);
    const [from, to] = zoom ?? [span ? Math.max(first, last - span) : first, last];
    isSetting = true;
    for (const each of charts) each.setScale("x", { min: from, max: to });
    isSetting = false;
    draw_lanes();
    box.dataset.from = from; box.dataset.to = to;
  }

  function follow(chart) {
    if (isSetting) return;
    const { min, max } = chart.scales.x, [first, last] = ends();
    if (min == null || !charts.includes(chart)) return;
    zoom = min <= first + 1 && max >= last - 1 ? null : [min, max];
    if (!zoom) range.value = "0";
    queueMicrotask(apply);
  }

  function shade(chart) {
    const paint = chart.ctx, { top, height: tall, left, width } = chart.bbox;
    paint.save();
    paint.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
    paint.globalAlpha = 0.1;
    for (const each of known.incidents) {
      const from = Math.max(left, chart.valToPos(each.begin_unix_seconds, "x", true));
      const to = Math.min(left + width, chart.valToPos(each.end_unix_seconds ?? ends()[1], "x", true));
      if (to > from) paint.fillRect(from, top, Math.max(to - from, 1), tall);
    }
    paint.restore();
  }

  function showValues(chart) {
    const place = chart.cursor.idx, unix = place == null ? null : chart.data[0][place];
    const point = unix == null ? null : known.points.findLast(each => each.begin_unix_seconds <= unix);
    if (!point) { at.textContent = ""; return; }
    const steps = point.steps > 1 ? `steps ${point.first_step} to ${point.last_step}` : `step ${point.last_step}`;
    at.textContent = `${clock(point.begin_unix_seconds, 0)} to ${clock(point.end_unix_seconds, 0)} UTC, ${steps}: ` +
      `${seconds(point.step_seconds)} a step`;
  }

  box.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], chart = charts[0];
    if (!step || !chart) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(chart.data[0].length - 1, (chart.cursor.idx ?? chart.data[0].length) + step));
    chart.setCursor({ left: chart.valToPos(chart.data[0][place], "x"), top: 10 });
  });

  // --- incidents

  function draw_lanes() {
    const chart = charts[0], ratio = devicePixelRatio || 1;
    const left = chart.bbox.left / ratio, wide = chart.bbox.width / ratio, { min, max } = chart.scales.x;
    const place = unix => left + (unix - min) / (max - min) * wide, used = [], made = [];
    const shown = known.incidents.filter(each => each.begin_unix_seconds <= max && (each.end_unix_seconds ?? max) >= min);
    for (const each of shown) {
      const from = Math.max(left, place(each.begin_unix_seconds)), to = Math.min(left + wide, place(each.end_unix_seconds ?? max));
      const length = Math.max(to - from, 5), room = Math.max(length, Math.min(each.title.length * 7 + 20, wide));
      const isLeft = from + room > left + wide, start = isLeft ? Math.max(left, from + length - room) : from;
      let lane = used.findIndex(end => end < start - 4);
      if (lane < 0) lane = used.push(0) - 1;
      used[lane] = start + room;
      made.push(bar(each, { from, length, lane, start, room, isLeft }));
    }
    lanes.replaceChildren(...made);
    lanes.style.height = `${Math.max(1, used.length) * LANE}px`;
    find("lanes-note").textContent = known.incidents.length ? shown.length ? "" : "No incident in this span." : "No incident yet.";
  }

  function bar(each, { from, length, lane, start, room, isLeft }) {
    const link = document.createElement("a"), mark = document.createElement("span"), name = document.createElement("span");
    link.href = find(`incident-${each.id}`) ? `#incident-${each.id}` : `/incidents/${encodeURIComponent(each.id)}`;
    const end = each.end_unix_seconds, until = end ? `to ${clock(end, 0)} UTC` : "still open";
    const onset = each.onset_step === null ? "" : `step ${each.onset_step}, `;
    link.title = `${each.title}: from ${onset}${clock(each.begin_unix_seconds, 0)} UTC ${until}`;
    link.setAttribute("aria-label", link.title);
    link.className = each.state;
    Object.assign(link.style, { left: `${start}px`, width: `${room}px`, top: `${lane * LANE}px` });
    mark.className = "mark";
    Object.assign(mark.style, { left: `${from - start}px`, width: `${length}px` });
    name.className = isLeft ? "name left" : "name";
    name.textContent = each.title;
    link.append(mark, name);
    return link;
  }

  // --- requests

  async function load() {
    const wait = asked + WAIT_MS - performance.now();
    if (isAsking || wait > 0) {
      waiting ??= setTimeout(() => { waiting = null; load(); }, Math.max(wait, 500));
      return;
    }
    isAsking = true; asked = performance.now();
    try {
      const answer = await fetch(`/api/v1/runs/${encodeURIComponent(lockstep.run)}/series`, { signal: AbortSignal.timeout(30000) });
      if (answer.ok) show(await answer.json());
    } catch { /* page.js shows that the coordinator does not respond */ }
    isAsking = false;
  }

  function show(fresh) {
    known = fresh;
    find("series-body").hidden = false;
    const isEmpty = !known.points.length;
    find("series-shown").hidden = isEmpty;
    note.textContent = isEmpty ? "No interval is complete yet." : "Drag to zoom, double-click for all of it; times are UTC. Red: an incident.";
    if (!isEmpty) { build(); box.dataset.last = known.points.at(-1).last_step; }
  }

  range.addEventListener("change", () => { zoom = null; if (known?.points.length) apply(); });
  dark.addEventListener("change", () => { if (known?.points.length) build(); });
  let width = 0;
  new ResizeObserver(() => {
    if (!known?.points.length || box.clientWidth === width) return;
    width = box.clientWidth;
    for (const each of charts) each.setSize({ width, height: 170 });
    draw_lanes();
  }).observe(box);
  lockstep.listeners.push(load);
  load();
})();
