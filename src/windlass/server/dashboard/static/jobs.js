// @ts-check
/** The list of jobs with its query bar, and failures by what they have in common. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { QUALIFIERS, STATES, asMatch, groupFailures, number, parseQuery, queue } from "./api.js";
import { Action, Empty, Fault, JobLink, State, Table, Time, ask, toast, useAsked } from "./parts.js";

const ROWS = 50;
/** Rows of one page, and of each further one. */

/** @param {any} props */
export function Jobs({ tenant, can, query }) {
  const text = query.get("q") ?? "";
  const [typed, setTyped] = useState(text);
  const [chosen, choose] = useState(/** @type {Set<string>} */ (new Set()));
  const [more, setMore] = useState(/** @type {any[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null} */ (null));
  const bar = useRef(/** @type {any} */ (null));
  useEffect(() => { setTyped(text); choose(new Set()); setMore([]); setNext(null); }, [text]);
  const parsed = useMemo(() => parseQuery(text), [text]);
  const api = queue(tenant);
  const list = useAsked(() => (parsed.wrong ? Promise.resolve({ jobs: [], next: null }) : api.get("/jobs", { ...parsed.query, limit: ROWS, order: "newest" })), [tenant, text]);
  const stats = useAsked(() => api.get("/stats"), [tenant], 3000);
  const counts = useMemo(() => facets(stats.data, parsed.query), [stats.data, text]);
  const go = (/** @type {string} */ to) => { location.hash = to ? `/jobs?q=${encodeURIComponent(to)}` : "/jobs"; };
  const toggleState = (/** @type {string} */ state) => {
    const others = text.replace(/\s*\bstate:\S+/g, "").trim();
    go(parsed.query.state?.length === 1 && parsed.query.state[0] === state ? others : `state:${state} ${others}`.trim());
  };
  const rows = [...(list.data?.jobs ?? []), ...more];
  const loadMore = async () => {
    const page = await api.get("/jobs", { ...parsed.query, limit: ROWS, order: "newest", after: next ?? list.data?.next });
    setMore((old) => [...old, ...page.jobs].slice(-1000));
    setNext(page.next);
  };
  const toggle = (/** @type {string} */ key) => choose((old) => { const now = new Set(old); if (!now.delete(key)) now.add(key); return now; });
  const selected = rows.filter((job) => chosen.has(keyOf(job)));
  const act = (/** @type {string} */ verb, /** @type {string} */ past) => async () => {
    if (selected.length) return `${number(await onJobs(selected, verb))} ${past}`;
    const body = parsed.query.state ? parsed.query : { ...parsed.query, state: ["pending", "finished"] };
    const { changed } = await onMatch(api, verb, body, true);
    if (!changed) return "no job to change";
    const sure = await ask({ title: `${verb[0].toUpperCase()}${verb.slice(1)} ${number(changed)} jobs?`, text: text || "All jobs", go: `${verb[0].toUpperCase()}${verb.slice(1)} ${number(changed)}`, danger: verb !== "retry" });
    if (!sure) return "";
    toast(`working on ${number(changed)} jobs …`);
    const done = await onMatch(api, verb, body, false);
    list.again();
    return `${number(done.changed)} ${past}`;
  };
  const all = tenant === "-";
  const columns = [
    ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ job) => html`<input type="checkbox" aria-label=${`Select ${job.id}`} checked=${chosen.has(keyOf(job))} onChange=${() => toggle(keyOf(job))} />` }] : []),
    { name: "State", tight: true, show: (/** @type {any} */ job) => html`<${State} state=${job.state} />` },
    { name: "Task", show: (/** @type {any} */ job) => html`<a href=${`#/job/${job.tenant}/${job.id}`}>${job.task}</a><div class="sub">${job.error && job.state !== "succeeded" ? `${job.error.type ? `${job.error.type}: ` : ""}${(job.error.message ?? "").slice(0, 120)}` : job.progress?.note ?? ""}</div>` },
    ...(all ? [{ name: "Tenant", wide: true, show: (/** @type {any} */ job) => job.tenant }] : []),
    { name: "Queue", wide: true, show: (/** @type {any} */ job) => job.queue },
    { name: "Tags", wide: true, show: (/** @type {any} */ job) => job.tags.map((/** @type {string} */ tag) => html`<span class="tag">${tag}</span> `) },
    { name: "Runs", num: true, wide: true, show: (/** @type {any} */ job) => job.attempt || "" },
    { name: "Changed", tight: true, show: (/** @type {any} */ job) => html`<${Time} at=${job.finished_at ?? job.started_at ?? job.created_at} />` },
    { name: "Job", tight: true, wide: true, show: (/** @type {any} */ job) => html`<${JobLink} id=${job.id} tenant=${job.tenant} />` },
  ];
  return html`<div class="head"><h1>Jobs</h1><span class="grow"></span>
      <a class="button" href=${api.url("/jobs")} onClick=${(/** @type {any} */ event) => { event.preventDefault(); download(api.url("/jobs"), parsed.query); }}>Export</a></div>
    <form class="row" onSubmit=${(/** @type {any} */ event) => { event.preventDefault(); go(typed.trim()); }}>
      <input ref=${bar} class="query" list="qualifiers" aria-label="Query" placeholder=${'state:failed task:mail payload.customer:5 "timed out"'} value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
      <datalist id="qualifiers">${completions(typed).map((one) => html`<option value=${one} />`)}</datalist>
      <button class="main">Find</button>${text && html`<button type="button" onClick=${() => go("")}>Clear</button>`}</form>
    ${parsed.wrong && html`<div class="note-line bad gap" role="alert">${parsed.wrong}</div>`}<${Fault} fault=${list.fault} />
    <div class="facets" role="group" aria-label="States">${STATES.map((state) => html`<button type="button" aria-pressed=${!!parsed.query.state?.includes(state)} onClick=${() => toggleState(state)}>${state} <span class="dim">${counts ? number(counts[state] ?? 0) : ""}</span></button>`)}
      <span class="grow"></span>${can("operate") && html`<span class="dim small">${selected.length ? `${selected.length} selected` : "all that match"}</span>
      <${Action} run=${act("retry", "queued again")}>Retry<//><${Action} run=${act("cancel", "cancelled")}>Cancel<//><${Action} kind="danger" run=${act("delete", "deleted")}>Delete<//>`}</div>
    <section class="panel"><${Table} rows=${list.data ? rows : undefined} of=${keyOf} columns=${columns}
      empty=${html`<${Empty} text=${text ? "No job matches." : "No jobs yet. Queue one:"} command=${text ? undefined : "windlass enqueue TASK PAYLOAD"} />`} /></section>
    ${(next ?? (more.length ? null : list.data?.next)) && html`<div class="row gap"><${Action} run=${loadMore}>Show more<//></div>`}`;
}

const keyOf = (/** @type {any} */ job) => `${job.tenant}/${job.id}`;

/** @param {string} typed */
function completions(typed) {
  const last = /\S*$/.exec(typed)?.[0] ?? "";
  const before = typed.slice(0, typed.length - last.length);
  const found = last.startsWith("state:") ? STATES.map((state) => `state:${state}`) : QUALIFIERS;
  return found.filter((one) => one.startsWith(last)).map((one) => before + one);
}

/** Counts by state, as far as counters can tell. @param {any} stats @param {Record<string, any>} query */
function facets(stats, query) {
  if (!stats || Object.keys(query).some((name) => !["state", "task", "queue"].includes(name))) return undefined;
  /** @type {Record<string, number>} */
  const found = {};
  for (const one of stats.queues) {
    if ((query.task && query.task !== one.task) || (query.queue && query.queue !== one.queue)) continue;
    for (const [state, count] of Object.entries(one.states)) found[state] = (found[state] ?? 0) + Number(count);
  }
  return found;
}

/** @param {any} api @param {string} verb @param {any} match @param {boolean} dry */
function onMatch(api, verb, match, dry) {
  return bulk(api, verb, { ...asMatch(match), dry_run: dry });
}

/** Act on some jobs, tenant by tenant. @param {any[]} jobs @param {string} verb */
export async function onJobs(jobs, verb) {
  let changed = 0;
  for (const tenant of new Set(jobs.map((job) => job.tenant))) {
    const ids = jobs.filter((job) => job.tenant === tenant).map((job) => job.id);
    for (let start = 0; start < ids.length; start += 500) {
      const some = ids.slice(start, start + 500);
      const api = queue(tenant);
      changed += (await bulk(api, verb, { ids: some })).changed;
    }
  }
  return changed;
}

/** @param {any} api @param {string} verb @param {any} body */
const bulk = (api, verb, body) => (verb === "delete" ? api.remove("/jobs", body) : api.post(`/jobs/${verb}`, body));

/** @param {string} url @param {Record<string, any>} query */
async function download(url, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of Array.isArray(value) ? value : [value]) words.append(name, String(one));
  const response = await fetch(`${url}?${words}`, { headers: { accept: "application/x-ndjson" } });
  if (!response.ok) { toast("the export failed"); return; }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = "jobs.ndjson";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const MOST_GROUPED = 1000;

/** @param {any} props */
export function Failures({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/jobs", { state: "failed", limit: MOST_GROUPED, order: "newest" }), [tenant], 5000);
  const groups = useMemo(() => (list.data ? groupFailures(list.data.jobs) : undefined), [list.data]);
  const act = (/** @type {any} */ group, /** @type {string} */ verb, /** @type {string} */ past) => async () => {
    const sure = verb === "retry" || (await ask({ title: `Delete ${group.jobs.length} failed jobs?`, text: `${group.task}: ${group.type}`, go: "Delete", danger: true }));
    if (!sure) return "";
    const changed = await onJobs(group.jobs, verb);
    list.again();
    return `${number(changed)} ${past}`;
  };
  const columns = [
    { name: "Jobs", num: true, tight: true, show: (/** @type {any} */ group) => number(group.jobs.length) },
    { name: "Failure", show: (/** @type {any} */ group) => html`<strong>${group.task}</strong> <span class="badge bad">${group.type}</span><div class="sub">${group.message.slice(0, 300)}</div>` },
    { name: "First", tight: true, wide: true, show: (/** @type {any} */ group) => html`<${Time} at=${group.first} />` },
    { name: "Last", tight: true, show: (/** @type {any} */ group) => html`<${Time} at=${group.last} />` },
    { name: "Newest", tight: true, wide: true, show: (/** @type {any} */ group) => html`<${JobLink} id=${group.jobs[0].id} tenant=${group.jobs[0].tenant} />` },
    ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ group) => html`<div class="doing"><${Action} run=${act(group, "retry", "queued again")}>Retry<//><${Action} kind="danger" run=${act(group, "delete", "deleted")}>Delete<//></div>` }] : []),
  ];
  return html`<div class="head"><h1>Failures</h1><span class="dim">the newest ${number(MOST_GROUPED)} failed jobs, by task and error</span></div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} rows=${groups} of=${(/** @type {any} */ group) => group.key} columns=${columns} empty=${html`<${Empty} text="Nothing has failed." />`} /></section>`;
}
