// What the page does once it is there: draws the charts, and makes tables sortable and searchable by keyboard.
"use strict";
(() => {
  const drawn = JSON.parse(document.getElementById("drawn").textContent);
  const OUTCOMES = {
    succeeded: ["var(--good)", "circle"], partial: ["var(--warn)", "triangle"], failed: ["var(--bad)", "times"],
    interrupted: ["var(--calm)", "square"], running: ["var(--busy)", "diamond"],
  };
  const runs = drawn.runs.map(([at, seconds, status, records, mode]) => ({ at: new Date(at), seconds, status, records, mode }));
  const uploads = drawn.uploads.map(([start, template, imports, rows]) => ({ start: new Date(start), template, imports, rows }));
  const count = new Intl.NumberFormat("en");
  const amount = (n, what) => `${count.format(n)} ${what}${n === 1 ? "" : "s"}`;
  const shortCount = new Intl.NumberFormat("en", { notation: "compact" });
  const minute = (date) => date.toISOString().slice(0, 16).replace("T", " ");
  const length = (s) => s === 0 ? "0" : s < 1 ? `${Math.round(s * 1000)} ms` : s < 60 ? `${+s.toFixed(1)} s`
    : s < 5400 ? `${+(s / 60).toFixed(1)} min` : `${+(s / 3600).toFixed(1)} h`;

  const outcomes = Object.keys(OUTCOMES).filter((status) => runs.some((run) => run.status === status));
  const byOutcome = {
    color: { domain: outcomes, range: outcomes.map((status) => OUTCOMES[status][0]) },
    symbol: { domain: outcomes, range: outcomes.map((status) => OUTCOMES[status][1]) },
  };
  const colors = { domain: drawn.templates, range: drawn.templates.map((_, n) => `var(--c${n + 1})`) };
  const runTip = (run) => `${minute(run.at)} UTC\n${run.status}, ${run.mode}\n`
    + `${run.seconds === null ? "" : `took ${length(run.seconds)}, `}${amount(run.records, "record")}`;

  const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 1209600, 2592000];
  // round lengths of time, up to one that is as long as the longest
  function lengths(most) {
    const step = STEPS.find((each) => most / each <= 5) ?? 2592000 * Math.ceil(most / 2592000 / 5);
    return d3.range(0, Math.ceil(Math.max(most, step / 5) / step) + 1).map((n) => n * step);
  }
  const span = (s) => s === 0 ? "0" : s < 60 ? length(s) : s < 5400 ? `${+(s / 60).toFixed(1)} min`
    : s < 172800 ? `${+(s / 3600).toFixed(1)} h` : `${+(s / 86400).toFixed(1)} days`;
  const toMinute = d3.utcFormat("%H:%M"), toSecond = d3.utcFormat("%H:%M:%S"), day = d3.utcFormat("%-d %b"), year = d3.utcFormat("%Y");
  // 24 hours; the day beneath the first tick and each that begins one
  const instant = (date, n, ticks) => {
    const before = n ? ticks[n - 1] : null, isMidnight = +date === +d3.utcDay.floor(date);
    const clock = ticks.length > 1 && ticks[1] - ticks[0] < 60000 ? toSecond : toMinute;
    const newYear = !before || date.getUTCFullYear() !== before.getUTCFullYear();
    if (ticks.every((each) => +each === +d3.utcDay.floor(each))) return newYear ? `${day(date)}\n${year(date)}` : day(date);
    return !before || day(date) !== day(before) ? `${clock(date)}\n${day(date)}` : isMidnight ? day(date) : clock(date);
  };

  const whole = (n) => Number.isInteger(n) ? shortCount.format(n) : "";
  // an axis for nothing but zeros, which would lie in its middle
  const upTo = (rows, value) => rows.some((row) => row[value] > 0) ? {} : { domain: [0, 1] };

  function spread(values) {
    const above = values.filter((value) => value > 0);
    return above.length > 1 && Math.max(...above) / Math.min(...above) > 100;
  }

  function runChart(width, value, ticks) {
    const shown = runs.filter((run) => run[value] !== null);
    const wide = spread(shown.map((run) => run[value]));
    const [first, last] = d3.extent(runs, (run) => run.at);
    const domain = first < last ? [first, last] : [d3.utcMinute.offset(first, -30), d3.utcMinute.offset(last, 30)];
    return Plot.plot({
      width, height: 250, marginLeft: 56, marginRight: 16, marginBottom: 36, style: { fontSize: "12px" }, ...byOutcome,
      x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)), tickFormat: instant, inset: 8, domain },
      y: { ...lengthsOrCounts(shown, value, wide), label: null, grid: true, tickFormat: ticks, ...upTo(shown, value) },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.ruleX(shown, { x: "at", y: value, stroke: "status", strokeOpacity: 0.45 }),
        Plot.dot(shown, { x: "at", y: value, stroke: "status", fill: "var(--paper)", symbol: "status", r: 3.5, strokeWidth: 2 }),
        Plot.tip(shown, Plot.pointer({ x: "at", y: value, title: runTip, fill: "var(--paper)", stroke: "var(--faint)", lineHeight: 1.35 })),
      ],
    });
  }

  function lengthsOrCounts(shown, value, wide) {
    const values = shown.map((run) => run[value]), most = Math.max(...values, 0);
    if (wide) {
      const ticks = steps(values);
      return { type: "symlog", label: null, ticks, domain: [0, Math.max(most, ticks.at(-1)) * 1.5] };
    }
    if (value !== "seconds" || !most) return { type: "linear", zero: true, nice: true, ticks: 5 };
    const ticks = lengths(most);
    return { type: "linear", ticks, domain: [0, ticks.at(-1)] };
  }

  function freshChart(width) {
    const times = drawn.fresh.map((at) => new Date(at)), until = new Date(document.querySelector("[data-made]").dataset.made);
    const ends = [...times.slice(1), until < times.at(-1) ? times.at(-1) : until];
    const points = times.flatMap((at, n) => [{ at, age: 0 }, { at: ends[n], age: (ends[n] - at) / 1000 }]);
    const ticks = lengths(d3.max(points, (point) => point.age));
    return Plot.plot({
      width, height: 180, marginLeft: 56, marginRight: 16, marginBottom: 36, style: { fontSize: "12px" },
      x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)), tickFormat: instant },
      y: { label: null, grid: true, ticks, tickFormat: span, domain: [0, ticks.at(-1)] },
      marks: [
        Plot.areaY(points, { x: "at", y: "age", fill: "var(--c1)", fillOpacity: 0.15 }),
        Plot.lineY(points, { x: "at", y: "age", stroke: "var(--c1)" }),
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.tip(points.filter((_, n) => n % 2), Plot.pointerX({ x: "at", y: "age", fill: "var(--paper)", stroke: "var(--faint)",
          title: (point) => `${minute(point.at)} UTC\n${span(point.age)} after the run before` })),
      ],
    });
  }

  function growthChart(width) {
    const sums = d3.rollups(uploads, (bars) => d3.sum(bars, (bar) => bar.rows), (bar) => +bar.start).sort(d3.ascending);
    let sum = 0;
    const points = sums.map(([start, rows]) => ({ start: new Date(start), rows: sum += rows }));
    return Plot.plot({
      width, height: 250, marginLeft: 56, marginRight: 16, marginBottom: 36, style: { fontSize: "12px" },
      x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)), tickFormat: instant },
      y: { label: null, grid: true, nice: true, zero: true, ticks: 5, tickFormat: whole, ...upTo(points, "rows") },
      marks: [
        Plot.areaY(points, { x: "start", y: "rows", curve: "step-after", fill: "var(--c1)", fillOpacity: 0.15 }),
        Plot.lineY(points, { x: "start", y: "rows", curve: "step-after", stroke: "var(--c1)", strokeWidth: 2 }),
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.tip(points, Plot.pointerX({ x: "start", y: "rows", fill: "var(--paper)", stroke: "var(--faint)",
          title: (point) => `${point.start.toISOString().slice(0, 10)}\n${amount(point.rows, "record")} in all` })),
      ],
    });
  }

  function steps(values) {
    const most = Math.max(...values), found = [0];
    for (let step = 1; step <= most; step *= 10) found.push(step);
    const every = Math.ceil((found.length - 1) / 5);
    return found.filter((_, n) => n === 0 || (found.length - 1 - n) % every === 0);
  }

  const UNITS = { day: d3.utcDay, week: d3.utcMonday, month: d3.utcMonth, year: d3.utcYear };
  const [firstUpload, lastUpload] = d3.extent(uploads, (bar) => bar.start);
  // so many at least that a single day is a bar, and not a wall
  const periods = uploads.length
    ? [d3.min([firstUpload, UNITS[drawn.unit].offset(lastUpload, -13)]), UNITS[drawn.unit].offset(lastUpload, 1)] : [];

  function uploadChart(width, value) {
    const title = (bar) => `${drawn.unit} of ${bar.start.toISOString().slice(0, 10)}\n${bar.template}\n`
      + `${amount(bar.imports, "import")}, ${amount(bar.rows, "record")}`;
    const bars = { x: "start", y: value, interval: UNITS[drawn.unit] };
    return Plot.plot({
      width, height: 250, marginLeft: 56, marginRight: 16, marginBottom: 36, style: { fontSize: "12px" }, color: colors,
      x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)), tickFormat: instant, domain: periods },
      y: { label: null, grid: true, nice: true, ticks: 5, tickFormat: whole, ...upTo(uploads, value) },
      marks: [
        Plot.rectY(uploads, { ...bars, fill: "template", order: drawn.templates, insetLeft: 0.5, insetRight: 0.5, title,
          tip: { fill: "var(--paper)", stroke: "var(--faint)", lineHeight: 1.35 } }),
        Plot.ruleY([0], { stroke: "var(--line)" }),
      ],
    });
  }

  const CHARTS = {
    fresh: [freshChart, null],
    growth: [growthChart, null],
    duration: [(width) => runChart(width, "seconds", span), byOutcome],
    loaded: [(width) => runChart(width, "records", whole), byOutcome],
    rows: [(width) => uploadChart(width, "rows"), { color: colors }],
  };
  const SYMBOLS = { circle: d3.symbolCircle, triangle: d3.symbolTriangle, times: d3.symbolTimes, square: d3.symbolSquare2, diamond: d3.symbolDiamond };

  function legend({ color, symbol }) {
    const list = document.createElement("ul");
    list.className = "legend-of-chart";
    color.domain.forEach((name, n) => {
      const item = list.appendChild(document.createElement("li"));
      const mark = d3.create("svg").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
      mark.append("path").attr("d", d3.symbol(symbol ? SYMBOLS[symbol.range[n]] : d3.symbolSquare, symbol ? 90 : 196)())
        .attr("fill", symbol ? "none" : color.range[n]).attr("stroke", color.range[n]).attr("stroke-width", 2);
      item.append(mark.node(), Object.assign(document.createElement("bdi"), { textContent: name }));
    });
    return list;
  }

  for (const place of document.querySelectorAll(".chart")) {
    const [draw, scales] = CHARTS[place.dataset.chart];
    const canvas = place.appendChild(document.createElement("div"));
    if (scales) place.append(legend(scales));
    const values = runs.map((run) => run[{ duration: "seconds", loaded: "records" }[place.dataset.chart]]);
    if (scales === byOutcome && spread(values.filter((value) => value !== null)))
      document.getElementById(place.dataset.labelled).append(" (logarithmic)");
    let drawnWidth = 0;
    new ResizeObserver(() => {
      const width = Math.floor(place.clientWidth);
      if (width === drawnWidth || !width) return;
      drawnWidth = width;
      const chart = draw(width);
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", `${document.getElementById(place.dataset.labelled).textContent}. ${place.dataset.summary}`);
      canvas.replaceChildren(chart);
    }).observe(place);
  }

  function sortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending"
          || (head.classList.contains("n") && !head.hasAttribute("aria-sort"));
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const numeric = [...body.rows].every((row) => row.cells[column].dataset.value !== undefined);
        const compare = numeric ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
        const keyed = [...body.rows].map((row) => [key(row), row]);
        keyed.sort(([a], [b]) => down ? compare(b, a) : compare(a, b));
        body.append(...keyed.map(([, row]) => row));
        table.dispatchEvent(new Event("ordered"));
      });
    });
  }

  // on a narrow screen a row is a block, in which each cell says what it is
  function labelled(table) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim());
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, n) => { cell.dataset.label = heads[n]; });
    table.classList.add("labelled");
  }

  const FIRST = 25;

  function searchable(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 8) return;
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    let all = rows.length <= FIRST + 5;
    const bar = document.createElement("div"), label = document.createElement("label");
    const input = document.createElement("input"), found = document.createElement("output");
    bar.className = "search";
    input.type = "search";
    input.id = `search-${table.dataset.what}`;
    label.htmlFor = input.id;
    label.textContent = `Search ${table.dataset.what}`;
    found.htmlFor = input.id;
    bar.append(label, input, found);
    table.parentElement.before(bar);
    const more = Object.assign(document.createElement("button"), { type: "button", className: "more-rows" });
    more.textContent = `Show all ${count.format(rows.length)} ${table.dataset.what}`;
    table.parentElement.after(more);
    function refresh() {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let matching = 0;
      for (const row of table.tBodies[0].rows) {
        const matches = words.every((word) => texts.get(row).includes(word));
        matching += matches;
        row.hidden = !matches;
        row.classList.toggle("later", matches && !all && !words.length && matching > FIRST);
      }
      more.hidden = all || words.length > 0;
      found.textContent = words.length ? `${count.format(matching)} of ${count.format(rows.length)}` : "";
    }
    more.addEventListener("click", () => { all = true; refresh(); });
    input.addEventListener("input", refresh);
    table.addEventListener("ordered", refresh);
    refresh();
  }

  document.querySelectorAll("table").forEach(labelled);
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table.searchable").forEach(searchable);

  const made = document.querySelector("[data-made]");
  const hours = (Date.now() - new Date(made.dataset.made)) / 3.6e6;
  const ago = new Intl.RelativeTimeFormat("en");
  if (hours >= 1) made.textContent = `, ${hours < 48 ? ago.format(-Math.floor(hours), "hour") : ago.format(-Math.floor(hours / 24), "day")}`;
})();
