// The page of gandiva web. What comes from the API is put into the page as text, never as markup.
"use strict";

const EVERY_MS = 2000, SHARES_MS = 15000, ANSWER_MS = 15000, SLOWEST_MS = 30000;
const ROW_PX = 24, PAGE = 100, AROUND = 10, NODES = 50, KEPT_MS = 600000;
const SVG = "http://www.w3.org/2000/svg";
const LEFT = 130, BAR = 16, STEP = 20, LETTERS = 20;

const at = (id) => document.getElementById(id);
const view = { user: "", state: "", total: 0, pages: new Map(), chosen: -1, nodesFrom: 0, nodesTotal: 0, job: null };
// by "node:gpu": segments of who held it, the oldest first
const turns = new Map();
// what the user has typed, while the page is open and no longer
let token = "";
let lastGood = 0, sharesDue = 0, wait = EVERY_MS, timer = 0;

function el(name, text, attributes) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}

async function get(path, words) {
  const asked = new URLSearchParams(Object.entries(words || {}).filter(([, value]) => value !== ""));
  const response = await fetch(`api/v1/${path}?${asked}`, {
    signal: AbortSignal.timeout(ANSWER_MS), redirect: "error",
    headers: { Accept: "application/json", ...(token && { "X-SLURM-USER-TOKEN": token }) },
  });
  const told = await response.json();
  if (!response.ok) throw Object.assign(new Error(told.error || `status ${response.status}`), { status: response.status });
  return told;
}

// the queue: rows are made for what is in sight, and asked for by pages

const COLUMNS = [
  ["Job", (row) => id(row)],
  ["User", (row) => row.user],
  ["State", (row) => row.state],
  ["GPUs", (row) => row.gpus],
  ["Node(GPUs)", (row) => row.places.map((one) => `${one.node}(${one.gpus.join(",")})`).join(",")],
  ["Share", (row) => row.share === null ? "" : `${Math.round(row.share * 100)}%`],
  ["Rate", (row) => row.rate ? `${row.rate.toFixed(1)}/s` : ""],
  ["Parked", (row) => row.parked_s === null ? "" : span(row.parked_s)],
  ["When", (row) => when(row)],
  ["Why", (row) => row.reason],
  ["Name; why in words", (row) => `${row.name}; ${row.detail}`],
];

function id(row) {
  return row.array_task_id === null ? String(row.job_id) : `${row.array_job_id}_${row.array_task_id}`;
}

function span(seconds) {
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  return `${two(Math.floor(whole / 3600))}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// What comes next of a job, and how long after the forecast's moment.
function when(row) {
  const told = row.when;
  if (!told || row.state === "ENDED") return "";
  if (told.why) return "unknown";
  const waits = ["HELD", "STARTING", "REQUEUED"].includes(row.state);
  let what = row.state === "RUNNING" ? "end" : waits ? "start" : "turn";
  const has = (name) => told[name] && told[name][1] !== null;
  if (what === "start" && has("start") && told.start[1] < told.of_s) what = "turn";
  return has(what) ? `${what}+${span(told[what][1] - told.of_s)}` : `${what}+later`;
}

function inSight() {
  const grid = at("grid"), first = Math.floor(grid.scrollTop / ROW_PX) - AROUND;
  const last = Math.ceil((grid.scrollTop + grid.clientHeight) / ROW_PX) + AROUND;
  return [Math.max(0, first), Math.min(view.total, last)];
}

async function loadQueue() {
  const [first, last] = inSight(), fresh = new Map();
  for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(first, last - 1) / PAGE); page += 1) {
    const told = await get("jobs", { user: view.user, state: view.state, offset: page * PAGE, limit: PAGE });
    view.total = told.total;
    fresh.set(page, told.jobs);
  }
  view.pages = fresh;
  drawQueue();
}

function drawQueue() {
  const [first, last] = inSight(), rows = [];
  at("space").style.height = `${view.total * ROW_PX}px`;
  at("grid").setAttribute("aria-rowcount", String(view.total + 1));
  at("total").textContent = `${view.total} jobs`;
  view.chosen = Math.min(view.chosen, view.total - 1);
  for (let number = first; number < last; number += 1) {
    const row = (view.pages.get(Math.floor(number / PAGE)) || [])[number % PAGE];
    rows.push(queueRow(number, row));
  }
  at("space").replaceChildren(...rows);
  const chosen = at(`row-${view.chosen}`);
  if (chosen) at("grid").setAttribute("aria-activedescendant", chosen.id);
  else at("grid").removeAttribute("aria-activedescendant");
}

function queueRow(number, row) {
  const line = el("div", null, { role: "row", class: "row job", id: `row-${number}`, "aria-rowindex": String(number + 2) });
  line.style.top = `${number * ROW_PX}px`;
  for (const [name, show] of COLUMNS) {
    const text = row ? String(show(row)) : name === "Job" ? "..." : "";
    line.append(el("div", text, { role: "gridcell", title: text }));
  }
  if (number === view.chosen) line.classList.add("chosen");
  line.setAttribute("aria-selected", String(number === view.chosen));
  line.addEventListener("click", () => { choose(number); openChosen(); });
  return line;
}

function choose(number) {
  const grid = at("grid"), room = grid.clientHeight - 2 * ROW_PX;
  view.chosen = Math.max(0, Math.min(view.total - 1, number));
  const top = view.chosen * ROW_PX;
  if (top < grid.scrollTop) grid.scrollTop = top;
  if (top > grid.scrollTop + room) grid.scrollTop = top - room;
  drawQueue();
}

function openChosen() {
  const row = (view.pages.get(Math.floor(view.chosen / PAGE)) || [])[view.chosen % PAGE];
  if (!row) return;
  view.job = id(row);
  at("story").hidden = false;
  loadStory().then(() => at("story").focus(), failed);
}

function keys(event) {
  const page = Math.floor(at("grid").clientHeight / ROW_PX) - 2;
  const moves = {
    ArrowDown: view.chosen + 1, ArrowUp: view.chosen - 1, PageDown: view.chosen + page,
    PageUp: view.chosen - page, Home: 0, End: view.total - 1,
  };
  if (event.key === "Enter") openChosen();
  else if (event.key in moves) choose(moves[event.key]);
  else return;
  event.preventDefault();
}

// one job's story

async function loadStory() {
  if (view.job === null) return;
  const job = view.job;
  try {
    const told = await get(`jobs/${encodeURIComponent(job)}`);
    if (view.job === job) drawStory(job, told);
  } catch (error) {
    if (error.status !== 404) throw error;
    at("sentence").textContent = error.message;
    for (const part of ["evidence", "lines", "next"]) at(part).replaceChildren();
  }
}

function drawStory(job, told) {
  at("story-title").textContent = `Job ${job} of ${told.job.user}: ${told.job.name}`;
  at("sentence").textContent = `${told.state}: ${told.code ? `${told.code}: ` : ""}${told.sentence}`;
  at("evidence").replaceChildren(...told.evidence.map((line) => el("li", line)));
  at("next").textContent = told.next ? `Next: ${told.next}` : "";
  const lines = told.story.map((line) => {
    const step = line.from === line.to ? line.to : `${line.from} to ${line.to}`;
    return el("li", `${new Date(line.t_s * 1000).toLocaleString()}  ${step}  ${line.code}: ${line.text}`);
  });
  at("lines").replaceChildren(...lines);
}

function closeStory() {
  view.job = null;
  at("story").hidden = true;
  at("grid").focus();
}

// nodes, and who held each GPU when

async function loadNodes() {
  let told;
  try {
    told = await get("nodes", { offset: view.nodesFrom, limit: NODES });
  } catch (error) {
    if (error.status !== 403) throw error;
    at("nodes-shown").textContent = error.message;
    return;
  }
  view.nodesTotal = told.total;
  const end = view.nodesFrom + told.nodes.length;
  at("nodes-shown").textContent = `Nodes ${told.nodes.length ? view.nodesFrom + 1 : 0} to ${end} of ${told.total}`;
  at("nodes-before").disabled = view.nodesFrom === 0;
  at("nodes-after").disabled = end >= told.total;
  const now = Date.now();
  told.nodes.forEach((node) => node.holders.forEach((one) => take(node, one, now)));
  drawChart(told.nodes, now);
  at("nodes").replaceChildren(...told.nodes.map(nodeRow));
}

function take(node, one, now) {
  const gpu = `${node.node}:${one.gpu}`, line = turns.get(gpu) || [];
  const who = holder(node, one), last = line[line.length - 1];
  if (last && last.who === who && now - last.to < 3 * SLOWEST_MS) last.to = now;
  else line.push({ from: last && now - last.to < 3 * EVERY_MS ? last.to : now, to: now, who, job: one.job_id });
  turns.set(gpu, line.filter((each) => now - each.to < KEPT_MS));
}

function holder(node, one) {
  if (!["up", "drain"].includes(node.state)) return node.state;
  if (one.job_id === null) return one.state ? "held" : "";
  return `${one.job_id} (${one.user})${one.packed_with ? ` with ${one.packed_with}` : ""}`;
}

function nodeRow(node) {
  const row = el("tr");
  const held = node.holders.map((one) => `${one.gpu}: ${holder(node, one) || "idle"}`).join("; ");
  row.append(el("th", node.node, { scope: "row" }));
  for (const text of [node.state, node.type, node.residents.length, held, node.reason]) row.append(el("td", text));
  return row;
}

function drawChart(nodes, now) {
  const gpus = nodes.flatMap((node) => node.holders.map((one) => `${node.node}:${one.gpu}`));
  const begin = Math.min(now - 60000, ...gpus.map((gpu) => (turns.get(gpu)[0] || { from: now }).from));
  const width = Math.max(480, at("chart").clientWidth);
  const x = (when) => LEFT + (width - LEFT) * (Math.max(when, begin) - begin) / (now - begin);
  const picture = shape("svg", { width, height: STEP * (gpus.length + 1), role: "img" });
  const held = gpus.filter((gpu) => turns.get(gpu).at(-1).who !== "").length;
  picture.setAttribute("aria-label", `${held} of ${gpus.length} GPUs are held; the list of nodes says by which jobs`);
  gpus.forEach((gpu, number) => {
    const y = number * STEP;
    const name = gpu.length > LETTERS ? `...${gpu.slice(3 - LETTERS)}` : gpu;
    picture.append(shape("text", { x: 0, y: y + 13 }, name));
    picture.append(shape("rect", { x: LEFT, y, width: width - LEFT, height: BAR, class: "idle" }));
    for (const each of turns.get(gpu)) if (each.who !== "") picture.append(...bar(each, x(each.from), x(each.to), y));
  });
  picture.append(shape("text", { x: LEFT, y: gpus.length * STEP + 13 }, clock(begin)));
  picture.append(shape("text", { x: width, y: gpus.length * STEP + 13, "text-anchor": "end" }, clock(now)));
  at("chart").replaceChildren(picture);
}

function bar(each, left, right, y) {
  const width = Math.max(1, right - left), hue = each.job === null ? 0 : (each.job * 137) % 360;
  const color = each.job === null ? "gray" : `hsl(${hue} 60% 55% / 0.6)`;
  const rect = shape("rect", { x: left, y, width, height: BAR, fill: color, class: "held" });
  rect.append(shape("title", {}, `${each.who}, ${clock(each.from)} to ${clock(each.to)}`));
  const fits = each.who.length * 6.5 < width;
  return fits ? [rect, shape("text", { x: left + 3, y: y + 12 }, each.who)] : [rect];
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

function clock(when) {
  return new Date(when).toLocaleTimeString();
}

// shares

async function loadShares() {
  if (Date.now() < sharesDue) return;
  const told = await get("shares");
  at("shares").replaceChildren(...told.users.map(shareRow));
  sharesDue = Date.now() + SHARES_MS;
}

function shareRow(one) {
  const row = el("tr"), percent = (part) => `${(part * 100).toFixed(1)} %`, cell = el("td");
  row.append(el("td", one.account), el("th", one.user, { scope: "row" }), el("td", one.tickets));
  row.append(el("td", percent(one.entitled_share)), el("td", percent(one.effectv_share)));
  for (const [name, part] of [["got", one.effectv_share], ["entitled", one.entitled_share]]) {
    cell.append(el("meter", null, { min: 0, max: 1, value: part, "aria-label": `${one.user} ${name}` }), el("br"));
  }
  row.append(cell, el("td", one.served_fair === null ? "" : one.served_fair.toFixed(2)));
  return row;
}

// What is asked beside the look may have to wait while others ask; what is shown of it stays.
async function unlessBusy(load) {
  try {
    await load();
  } catch (error) {
    if (![429, 503].includes(error.status)) throw error;
  }
}

// again and again; what is shown stays while nothing answers, and its age is told

async function look() {
  clearTimeout(timer);
  try {
    const told = await get("health");
    at("cluster").textContent = told.cluster;
    at("login").hidden = true;
    await loadQueue();
    await loadNodes();
    await unlessBusy(loadShares);
    await unlessBusy(loadStory);
    lastGood = Date.now() - told.age_s * 1000;
    at("state").textContent = `Seen by ${told.user} at ${clock(lastGood)}`;
    at("trouble").textContent = told.slurm_error ? `Slurm cannot be read: ${told.slurm_error}` : "";
    document.querySelector("main").classList.remove("old");
    wait = EVERY_MS;
  } catch (error) {
    failed(error);
  }
  if (!document.hidden) timer = setTimeout(look, wait);
}

function failed(error) {
  const why = error.status ? error.message : navigator.onLine ? "gandiva web cannot be reached" : "this browser is offline";
  const age = lastGood ? `what is shown is ${Math.round((Date.now() - lastGood) / 1000)} s old` : "nothing was seen yet";
  at("trouble").textContent = `${why}; ${age}; trying again`;
  if (error.status === 401) at("login").hidden = false;
  document.querySelector("main").classList.add("old");
  wait = Math.min(SLOWEST_MS, wait * 1.5);
}

function start() {
  COLUMNS.forEach(([name]) => at("heads").append(el("div", name, { role: "columnheader" })));
  let scrolled = 0;
  at("grid").addEventListener("keydown", keys);
  at("grid").addEventListener("scroll", () => {
    drawQueue();
    clearTimeout(scrolled);
    scrolled = setTimeout(() => loadQueue().catch(failed), 100);
  });
  at("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    view.user = at("user").value.trim();
    view.state = at("wanted").value;
    view.chosen = -1;
    at("grid").scrollTop = 0;
    look();
  });
  at("login").addEventListener("submit", (event) => {
    event.preventDefault();
    token = at("token").value.trim().replace(/^SLURM_JWT=/, "").replace(/[^\x21-\x7e]/g, "");
    at("token").value = "";
    wait = EVERY_MS;
    look();
  });
  at("close").addEventListener("click", closeStory);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && view.job !== null) closeStory(); });
  for (const [button, step] of [["nodes-before", -NODES], ["nodes-after", NODES]]) {
    at(button).addEventListener("click", () => {
      view.nodesFrom = Math.max(0, view.nodesFrom + step);
      loadNodes().catch(failed);
    });
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  for (const name of ["online", "offline"]) window.addEventListener(name, look);
  look();
}

start();
