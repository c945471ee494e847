// The timeline of ranks: lanes of slices on a canvas, zoomed and moved by buttons, keys, wheel with Ctrl, and dragging.
for (const view of document.querySelectorAll("#timeline .timeline")) {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = view.querySelector("canvas"), readout = document.querySelector("#timeline .readout");
  const pen = canvas.getContext("2d"), ROW = 15, HEAD = 20, LABEL = 13, GAP = 3, TEXT = 6;
  const whole = [data.begin_ns, Math.max(data.end_ns, data.begin_ns + 1)];
  let [from, to] = whole, marked = null, hovered = null, width = 0;
  const rows = [];
  let height = HEAD;
  for (const rank of data.ranks) {
    rows.push({ top: height, title: `rank ${rank.rank}`, rank });
    height += HEAD;
    for (const lane of rank.lanes) {
      rows.push({ top: height + LABEL, lane, rank });
      height += LABEL + lane.depth * ROW + GAP;
    }
  }
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const across = time => (time - from) / (to - from) * width;
  const time = ns => {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([size]) => Math.abs(ns) >= size) ?? [1, "ns"];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  };
  function draw() {
    const scale = window.devicePixelRatio || 1, ink = colour("ink"), soft = colour("soft"), grid = colour("grid");
    width = view.clientWidth;
    canvas.width = width * scale; canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    const fills = data.kinds.map(kind => colour(kind === "nothing" ? "track" : kind) || grid);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
    axis(soft, grid);
    for (const row of rows) row.lane ? drawLane(row, fills, dark, ink, soft) : drawRank(row, ink, soft);
    canvas.dataset.from = from; canvas.dataset.to = to;
  }
  function axis(soft, grid) {
    const least = (to - from) / Math.max(width / 90, 1), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= least);
    pen.strokeStyle = grid; pen.fillStyle = soft;
    for (let at = Math.ceil((from - whole[0]) / step) * step; at <= to - whole[0]; at += step) {
      const x = across(at + whole[0]);
      pen.beginPath(); pen.moveTo(x, HEAD - 4); pen.lineTo(x, height); pen.stroke();
      if (x < width - 50) pen.fillText(time(at), x + 2, HEAD / 2);
    }
  }
  function drawRank(row, ink, soft) {
    pen.fillStyle = ink; pen.font = "600 12px system-ui, sans-serif";
    pen.fillText(row.title, 2, row.top + HEAD / 2);
    pen.font = "11px system-ui, sans-serif"; pen.fillStyle = soft; pen.strokeStyle = soft;
    for (const [number, start] of row.rank.steps) {
      const x = across(start);
      if (x < 60 || x > width) continue;
      pen.beginPath(); pen.moveTo(x, row.top); pen.lineTo(x, row.top + HEAD); pen.stroke();
      if (x < width - 50) pen.fillText(`step ${number}`, x + 3, row.top + HEAD / 2);
    }
  }
  function drawLane(row, fills, dark, ink, soft) {
    const { slices, name } = row.lane;
    for (let at = 0; at < slices.length; at += 5) {
      const begin = slices[at], end = begin + slices[at + 1];
      if (end < from || begin > to) continue;
      const left = Math.max(across(begin), 0), right = Math.min(across(end), width);
      const top = row.top + slices[at + 4] * ROW, wide = Math.max(right - left, 0.5);
      const kind = slices[at + 3];
      pen.fillStyle = fills[kind];
      pen.fillRect(left, top, wide, ROW - 1);
      if (wide > 28) {
        const text = data.names[slices[at + 2]], room = Math.floor((wide - 6) / TEXT);
        pen.fillStyle = kind === 0 ? ink : dark ? "#000" : kind === 3 ? "#000" : "#fff";
        pen.fillText(text.length > room ? text.slice(0, Math.max(room - 1, 1)) + "…" : text, left + 3, top + ROW / 2);
      }
    }
    const chosen = [hovered, marked].find(each => each && each.row === row);
    if (chosen) {
      pen.strokeStyle = colour("bad"); pen.lineWidth = 2;
      const left = across(chosen.begin), wide = Math.max(across(chosen.end) - left, 2);
      pen.strokeRect(left, row.top + chosen.depth * ROW, wide, ROW - 1);
      pen.lineWidth = 1;
    }
    pen.fillStyle = soft; pen.fillText(name, 2, row.top - LABEL / 2);
  }
  function show(begin, end) {
    const least = 200, span = Math.min(Math.max(end - begin, least), whole[1] - whole[0]);
    from = Math.min(Math.max(begin, whole[0]), whole[1] - span); to = from + span;
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at - (at - from) * factor + (to - from) * factor);
  const move = share => show(from + (to - from) * share, to + (to - from) * share);
  function sliceAt(x, y) {
    const at = from + x / width * (to - from), slack = (to - from) / width;
    const row = rows.find(row => row.lane && y >= row.top && y < row.top + row.lane.depth * ROW);
    if (!row) return null;
    const depth = Math.floor((y - row.top) / ROW), { slices } = row.lane;
    for (let each = 0; each < slices.length; each += 5)
      if (slices[each + 4] === depth && slices[each] - slack <= at && at <= slices[each] + slices[each + 1] + slack)
        return { row, depth, begin: slices[each], end: slices[each] + slices[each + 1], name: data.names[slices[each + 2]] };
    return null;
  }
  function describe(slice) {
    readout.textContent = slice
      ? `${slice.name}: ${time(slice.end - slice.begin)} from ${time(slice.begin - whole[0])}, rank ${slice.row.rank.rank}, ${slice.row.lane.name}`
      : "";
  }
  const actions = { "+": () => zoom(0.5), "-": () => zoom(2), "ArrowLeft": () => move(-0.2), "ArrowRight": () => move(0.2), "0": () => show(...whole) };
  for (const button of document.querySelectorAll("#timeline button[data-key]")) button.onclick = actions[button.dataset.key];
  canvas.onkeydown = event => {
    const act = actions[event.key === "=" ? "+" : event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  };
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const place = from + event.offsetX / width * (to - from);
    event.ctrlKey ? zoom(event.deltaY > 0 ? 1.25 : 0.8, place) : move(Math.sign(event.deltaY || event.deltaX) * 0.1);
  }, { passive: false });
  let dragged = null;
  canvas.onpointerdown = event => { dragged = [event.clientX, from, to]; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointerup = canvas.onpointercancel = () => { dragged = null; };
  canvas.onpointermove = event => {
    if (dragged) {
      const by = (dragged[0] - event.clientX) / width * (dragged[2] - dragged[1]);
      show(dragged[1] + by, dragged[2] + by);
      return;
    }
    hovered = sliceAt(event.offsetX, event.offsetY);
    describe(hovered ?? marked);
    requestAnimationFrame(draw);
  };
  canvas.ondblclick = event => {
    const slice = sliceAt(event.offsetX, event.offsetY);
    if (slice) { marked = slice; show(slice.begin - (slice.end - slice.begin) * 0.2, slice.end + (slice.end - slice.begin) * 0.2); }
  };
  for (const link of document.querySelectorAll("a[data-place]")) link.addEventListener("click", () => {
    const [begin, duration] = data.places[link.dataset.place], rank = Number(link.dataset.place.split("|")[0]);
    const subject = link.dataset.place.slice(link.dataset.place.indexOf("|") + 1);
    for (const row of rows) {
      if (!row.lane || row.rank.rank !== rank) continue;
      for (let at = 0; at < row.lane.slices.length; at += 5)
        if (row.lane.slices[at] === begin && row.lane.slices[at + 1] === duration)
          marked = { row, depth: row.lane.slices[at + 4], begin, end: begin + duration, name: subject };
    }
    describe(marked);
    show(begin - duration * 0.5, begin + duration * 1.5);
    if (marked) view.scrollTop = Math.max(marked.row.top - HEAD - LABEL, 0);
  });
  new ResizeObserver(draw).observe(view);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  draw();
}
