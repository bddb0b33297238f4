// The page in which people grade. Everything from the server is set as text; only a report is markup, which the server
// has sanitised, and the page's policy lets nothing in it run or load.
"use strict";

const SAVE_AFTER_MS = 500, PRESS_MS = 1000, RETRY_AFTER_MS = 3000, POLL_MS = 5000, TELL_MS = 20000;
const $ = (id) => document.getElementById(id);
const state = { cls: null, unit: null, marks: {}, active: null, editing: null, missed: new Set(), unsaved: new Set(), failed: "" };

function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

async function ask(method, path, body) {
  const options = { method, cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error || answer.statusText), { status: answer.status, now: found.now });
  return found;
}

function say(text, bad) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", Boolean(bad));
}

// --- what was typed, kept by the browser until the server has it -------------------------------------------------------

const key = (...parts) => ["gpulabs-manual", state.cls.room, state.cls.me, ...parts].join("/");
const keep = (name, value) => { try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* full or forbidden */ } };
const kept = (name) => { try { return JSON.parse(localStorage.getItem(name)); } catch { return null; } };
const forget = (name) => { try { localStorage.removeItem(name); } catch { /* forbidden */ } };
const given = (mark) => JSON.stringify([mark.content, mark.comments, Number(mark.adjust), mark.text, mark.done]);

function empty(criterion) {
  return { criterion, revision: 0, content: state.unit.content, comments: [], adjust: 0, text: "", done: false, by: "" };
}

// --- saving ------------------------------------------------------------------------------------------------------------

function touched(mark) {
  mark.dirty = true;
  state.unsaved.add(mark);
  keep(key("mark", mark.unit, mark.criterion), { ...mark, saving: false });
  showPoints(mark);
  say("…");
  clearTimeout(mark.timer);
  mark.timer = setTimeout(() => save(mark), SAVE_AFTER_MS);
}

// The server takes back what it got last, so it gets changes in the order in which they were made.
let lastSent = Promise.resolve();
function inTurn(send) {
  const sent = lastSent.then(send);
  lastSent = sent.catch(() => {});
  return sent;
}

async function save(mark, { atOnce = false } = {}) {
  if (mark.saving || mark.conflict || !mark.dirty) return;
  clearTimeout(mark.timer);
  mark.saving = true;
  const { revision, content, comments, adjust, text, done } = mark;
  const sent = given(mark);
  try {
    const send = () => ask("PUT", `unit/${mark.unit}/mark/${mark.criterion}`, { revision, content, comments, adjust, text, done });
    const now = await (atOnce ? send() : inTurn(send));
    mark.revision = now.revision;
    mark.by = now.by;
    mark.dirty = given(mark) !== sent;
    state.missed.delete(mark);
    if (mark.dirty) keep(key("mark", mark.unit, mark.criterion), { ...mark, saving: false });
    else forget(key("mark", mark.unit, mark.criterion));
    if (!mark.dirty) state.unsaved.delete(mark);
    if (!state.missed.size && !state.unsaved.size) say("saved");
    showPoints(mark);
    refresh();
  } catch (error) {
    if (error.status && error.status < 500 && error.status !== 403) state.unsaved.delete(mark);  // said, and not tried again
    if (error.status === 409) conflict(mark, error);
    else if (error.status && error.status < 500 && error.status !== 403) say(`not saved: ${error.message}`, true);
    else {
      state.missed.add(mark);
      say(error.status === 403 ? `not saved, but kept in this browser: ${error.message}` :
        `not saved, but kept in this browser: ${error.status ? error.message : "the server does not answer"}; trying again`, true);
      mark.timer = setTimeout(() => save(mark), RETRY_AFTER_MS);
    }
  } finally {
    mark.saving = false;
  }
  if (mark.dirty && !mark.conflict && !state.missed.has(mark)) mark.timer = setTimeout(() => save(mark), SAVE_AFTER_MS);
}

function conflict(mark, error) {
  mark.conflict = { message: error.message, now: error.now };
  say(error.message, true);
  renderCriterion(mark.criterion);
}

async function settled() {
  const open = Object.values(state.marks).filter((mark) => mark.dirty && !mark.conflict);
  await Promise.all(open.map((mark) => save(mark)));
}

// --- the class ---------------------------------------------------------------------------------------------------------

async function refresh() {
  let cls;
  try {
    cls = await ask("GET", "class");
  } catch (error) {
    say(error.status ? error.message : "the server does not answer; what you type is kept in this browser", true);
    state.failed = "class";
    return;
  }
  if (state.failed) { state.failed = ""; say("the server answers again"); }
  const before = state.cls;
  state.cls = cls;
  document.title = `${cls.title}: grading by hand`;
  if (before === null || JSON.stringify(before.criteria) !== JSON.stringify(cls.criteria)) renderOnly();
  if (before && state.unit && JSON.stringify(before.comments) !== JSON.stringify(cls.comments)) cls.criteria.forEach((one) => renderComments(one.id));
  renderHead();
  if ($("list").open) renderList();
  const row = here();
  if (row && state.unit) {
    const behind = cls.criteria.some((one) => {
      const mark = state.marks[one.id];
      return mark && !mark.dirty && !mark.saving && (row.revisions[one.id] || 0) > mark.revision;
    });
    if (behind) await open(state.unit.id, true);
  }
}

const here = () => state.unit && state.cls.units.find((one) => one.id === state.unit.id);
const finished = (row) => state.cls.criteria.every((one) => row.states[one.id].state === "done");
const needs = (row) => $("only").value ? row.states[$("only").value].state !== "done" : !finished(row);

function renderOnly() {
  const chosen = kept(key("only")) || "";
  $("only").replaceChildren(h("option", { value: "" }, "everything"), ...state.cls.criteria.map((one) => h("option", { value: one.id }, one.title)));
  $("only").value = state.cls.criteria.some((one) => one.id === chosen) ? chosen : "";
}

function renderHead() {
  const rows = state.cls.units, done = rows.filter(finished).length;
  const row = here();
  $("label").textContent = row ? row.label : "No submission";
  const place = row ? `${rows.indexOf(row) + 1} of ${rows.length}` : `${rows.length} submissions`;
  const beside = row && row.open_by ? ` · ${row.open_by} has it open, too` : "";
  const left = $("only").value ? ` · ${rows.filter(needs).length} left of this criterion` : "";
  $("about").textContent = `${state.cls.title} · ${place} · ${done} finished${left} · grading as ${state.cls.me}${state.cls.released ? " · points are released" : ""}${beside}`;
}

function renderList() {
  const wanted = $("filter").value, text = $("search").value.toLowerCase();
  const shown = state.cls.units.filter((row) => {
    const states = Object.values(row.states);
    return row.label.toLowerCase().includes(text) && {
      all: true, ungraded: needs(row), mine: states.some((one) => one.state === "done" && one.by === state.cls.me),
      anew: states.some((one) => one.state === "anew"), requests: row.requests > 0,
    }[wanted];
  });
  $("list-title").textContent = `${shown.length} of ${state.cls.units.length} submissions: ${state.cls.criteria.map((one) => one.title).join(" · ")}`;
  $("rows").replaceChildren(...shown.map((row) => h("li", {}, h("button", {
    className: state.unit && row.id === state.unit.id ? "here" : "", onclick: () => { $("list").close(); go(row.id); },
  }, h("span", {}, row.label), h("span", { className: "state" },
    ...state.cls.criteria.map((one) => {
      const mark = row.states[one.id];
      const word = { open: "–", begun: "begun", done: "✓", anew: "handed in again" }[mark.state];
      return h("span", { className: `is-${mark.state}`, title: mark.at ? `${one.title}, ${new Date(mark.at).toLocaleString()}` : one.title }, ` ${word}${mark.by ? ` ${mark.by}` : ""} `);
    }),
    row.requests ? h("span", { className: "is-anew" }, ` ${row.requests} asked `) : null,
    row.open_by ? ` open: ${row.open_by}` : null)))));
  const tally = Object.entries(state.cls.graded).map(([name, count]) => `${name} ${count}`).join(", ");
  const gone = state.cls.gone.length ? ` Marks of nobody who is here now: ${state.cls.gone.join(", ")}.` : "";
  $("tally").textContent = `Criteria graded: ${tally || "none yet"}.${gone}`;
}

// --- one submission ----------------------------------------------------------------------------------------------------

async function go(id) {
  await settled();
  await open(id);
}

async function open(id, same) {
  let unit;
  try {
    unit = await ask("GET", `unit/${id}`);
  } catch (error) {
    say(error.status ? error.message : "the server does not answer", true);
    return;
  }
  state.unit = unit;
  state.marks = {};
  for (const one of state.cls.criteria) {
    const there = unit.marks[one.id] || empty(one.id);
    const stale = there.content !== unit.content;
    const mark = { ...there, unit: id, stale };
    const draft = kept(key("mark", id, one.id));
    if (draft && given(draft) !== given(there) && draft.content === unit.content) {
      Object.assign(mark, draft, { dirty: true, saving: false, conflict: null, stale: false });
    } else if (draft) forget(key("mark", id, one.id));
    state.marks[one.id] = mark;
  }
  const wanted = $("only").value;
  if (!same || !state.marks[state.active]) state.active = wanted || state.cls.criteria[0].id;
  keep(key("last"), id);
  history.replaceState(null, "", `#${id}`);
  renderRead();
  renderJudge();
  renderHead();
  if (!same) scrollTo(0, 0);
  const restored = Object.values(state.marks).filter((mark) => mark.dirty);
  if (restored.length) say("what this browser had kept is put back");
  restored.forEach(save);
  tell();
}

function renderRead() {
  const unit = state.unit, parts = [];
  if (unit.anew) {
    const lines = unit.anew.changes;
    parts.push(h("section", { className: "notice" },
      h("h2", {}, "Handed in again after it was graded"),
      h("p", {}, `The marks that ${unit.anew.by} gave are for an earlier version and do not count. ${lines.length ? "What changed in the report:" : "The report is the same; other files changed."}`),
      lines.length ? h("pre", { className: "changes" }, lines.map((line) => h("span", { className: line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "" }, `${line}\n`))) : null,
      h("button", { onclick: keepMarks }, "I have looked: the marks stand")));
  }
  if (unit.automatic.length) {
    parts.push(h("section", { className: "automatic" }, h("h2", {}, "What the automatic checks of these reports found; it gives no points"),
      h("ul", {}, unit.automatic.map((one) => h("li", {}, h("b", {}, `Lab ${one.lab}: ${one.outcome.replace("_", " ")}`), ` – ${one.title}`,
        one.message ? h("pre", {}, one.message) : null)))));
  }
  for (const one of unit.reports) {
    const body = h("div", { className: "report" });
    body.innerHTML = one.html; // sanitised by the server; the policy of this page lets nothing in it run
    for (const picture of body.querySelectorAll("img:not([src])")) picture.remove(); // it led elsewhere
    for (const picture of body.querySelectorAll("img:not([alt])")) picture.alt = "a picture that the report does not describe";
    parts.push(h("section", {}, h("p", { className: "soft" }, one.name), body));
  }
  if (!unit.reports.length) parts.push(h("section", {}, h("p", {}, "There is no REPORT.md in this submission.")));
  const others = unit.pictures.filter((one) => !unit.reports.some((report) => report.html.includes(`src="${one.address}"`)));
  if (others.length) {
    parts.push(h("section", {}, h("h2", {}, "Pictures that no report shows"), h("div", { className: "pictures" }, others.map((one) =>
      h("figure", {}, h("img", { src: one.address, alt: one.name, loading: "lazy" }), h("figcaption", {}, one.name))))));
  }
  if (unit.compared) parts.push(h("p", {}, h("a", { href: "similarity", target: "_blank", rel: "noopener" }, "Similar submissions")));
  parts.push(h("section", { id: "code", className: "code" }));
  $("read").replaceChildren(...parts);
  renderCode(unit.id); // code.js
}

async function keepMarks() {
  try {
    await ask("POST", `unit/${state.unit.id}/keep`);
    await open(state.unit.id, true);
    say("the marks stand for this version");
    refresh();
  } catch (error) { say(error.message, true); }
}

function renderJudge() {
  const parts = state.unit.requests.map(renderRequest);
  for (const one of state.cls.criteria) parts.push(h("section", { id: `criterion-${one.id}` }));
  parts.push(h("p", { id: "total", className: "soft" }));
  $("judge").replaceChildren(...parts);
  for (const one of state.cls.criteria) renderCriterion(one.id);
}

function renderRequest(request) {
  const name = key("answer", request.id);
  const text = h("textarea", { value: kept(name) ?? request.answer, "aria-label": "Answer", oninput: () => keep(name, text.value) });
  const send = h("button", { onclick: async () => {
    try {
      await ask("PUT", `request/${request.id}`, { text: text.value });
      forget(name);
      request.answer = text.value;
      say("the answer is saved; students get it with their feedback");
      refresh();
    } catch (error) { say(`not saved, but kept in this browser: ${error.message}`, true); }
  } }, "Save the answer");
  return h("section", { className: "notice request" },
    h("h2", {}, `Asked to look again${request.about ? `: ${request.about}` : ""}`),
    request.student ? h("p", { className: "soft" }, request.student) : null, h("p", {}, request.text), text, send);
}

const criterionOf = (id) => state.cls.criteria.find((one) => one.id === id);
const commentsOf = (id) => state.cls.comments.filter((one) => one.criterion === id);
const signed = (value) => value > 0 ? `+${value}` : String(value).replace("-", "−");
const cents = (value) => Math.round(value * 100) / 100;

function base(mark) {
  const criterion = criterionOf(mark.criterion);
  const said = state.cls.comments.filter((one) => mark.comments.includes(one.id)).reduce((sum, one) => sum + one.points, 0);
  return (criterion.start === "full" ? criterion.points : 0) + said;
}

const worth = (mark) => Math.min(criterionOf(mark.criterion).points, Math.max(0, cents(base(mark) + Number(mark.adjust))));
// A mark for an earlier version is shown, and becomes one for this version as soon as somebody changes it.
const mine = (mark) => { if (mark.stale) { mark.stale = false; mark.content = state.unit.content; } return mark; };

function renderCriterion(id) {
  const section = $(`criterion-${id}`), mark = state.marks[id], one = criterionOf(id);
  const box = h("input", { type: "checkbox", checked: mark.done && !mark.stale, id: `done-${id}`, onchange: () => finish(mark, wanted === null ? box.checked : wanted) });
  // Leaving the points' field finishes a criterion, also on the way to this box, which must not take that back then.
  let wanted = null, before = mark.adjust;
  const press = () => { wanted = !box.checked; setTimeout(() => { wanted = null; }, PRESS_MS); };
  const points = h("input", { id: `points-${id}`, inputMode: "decimal", "aria-label": `Points for ${one.title}`, autocomplete: "off", oninput: () => typePoints(mark, points.value), onchange: () => { setPoints(mark, points.value, before); before = mark.adjust; }, onfocus: () => { before = mark.adjust; points.select(); } });
  const text = h("textarea", { id: `text-${id}`, value: mark.text, placeholder: "for this submission only", "aria-label": `Text for ${one.title}`, oninput: () => { mine(mark).text = text.value; touched(mark); } });
  section.onclick = () => activate(id);
  section.addEventListener("focusin", () => activate(id));
  section.replaceChildren(...[
    h("div", { className: "top" }, h("h2", {}, one.title), h("span", { className: "points" }, points, ` / ${one.points}`)),
    one.about ? h("p", { className: "soft" }, one.about) : null,
    mark.conflict ? renderConflict(mark) : null,
    one.level.length ? h("ul", { className: "levels", "aria-label": `Levels of ${one.title}` }, one.level.map((level) => h("li", {},
      h("button", { title: "Give these points", onclick: () => setPoints(mark, String(level.points), mark.adjust) }, String(level.points)), h("span", {}, level.text)))) : null,
    h("ul", { className: "comments", id: `comments-${id}` }),
    h("button", { id: `add-${id}`, onclick: () => { state.editing = `new ${id}`; renderComments(id); $(`edit-text-${id}`).focus(); } }, "+ reusable comment"),
    text,
    h("div", { className: "finish" }, h("label", { onmousedown: press }, box, " finished"), h("span", { className: "soft", id: `by-${id}` })),
  ].filter(Boolean));
  renderComments(id);
  showPoints(mark);
}

function renderConflict(mark) {
  const now = mark.conflict.now;
  const settle = (theirs) => {
    forget(key("mark", mark.unit, mark.criterion));
    mark.conflict = null;
    if (theirs || !now) { open(mark.unit, true); return; }
    mark.revision = now.revision;
    renderCriterion(mark.criterion);
    touched(mark);
  };
  return h("div", { className: "conflict" }, h("b", {}, mark.conflict.message),
    now ? h("p", {}, `${now.by}: ${worth({ ...now, criterion: mark.criterion })} points${now.text ? `, “${now.text}”` : ""}`) : null,
    h("div", { className: "row" }, h("button", { onclick: () => settle(true) }, now ? `Take that of ${now.by}` : "Load what is there"),
      now ? h("button", { onclick: () => settle(false) }, "Keep mine") : null));
}

function renderComments(id) {
  const list = $(`comments-${id}`), mark = state.marks[id];
  if (!list) return;
  const rows = commentsOf(id).map((one, index) => {
    const on = mark.comments.includes(one.id);
    const box = h("input", { type: "checkbox", checked: on, "aria-label": one.text, onchange: () => toggle(id, one.id) });
    return h("li", { className: on ? "on" : "" },
      h("span", {}, box, index < 9 ? h("kbd", {}, ` ${index + 1}`) : null),
      h("span", { className: "said", onclick: () => toggle(id, one.id) }, one.text),
      h("span", { className: "worth" }, one.points ? signed(one.points) : ""),
      h("button", { title: "Change it, for everybody who has it", "aria-label": `Change the comment ${one.text}`, onclick: () => { state.editing = one.id; renderComments(id); $(`edit-text-${id}`).focus(); } }, "✎"),
      state.editing === one.id ? editor(id, one) : null);
  });
  if (state.editing === `new ${id}`) rows.push(h("li", {}, editor(id, null)));
  list.replaceChildren(...rows);
}

function editor(id, comment) {
  const text = h("textarea", { id: `edit-text-${id}`, value: comment ? comment.text : "", placeholder: "what you say more than once", "aria-label": "Text of the comment" });
  const points = h("input", { id: `edit-points-${id}`, value: comment ? comment.points : criterionOf(id).start === "full" ? -1 : 1, inputMode: "decimal", "aria-label": "Points of the comment" });
  const close = () => { state.editing = null; renderComments(id); };
  const number = () => Number(points.value.replace(",", ".").replace("−", "-"));
  const store = async () => {
    if (!Number.isFinite(number()) || points.value.trim() === "") { say(`${points.value} is no number of points`, true); return; }
    try {
      const body = { text: text.value, points: number(), criterion: id };
      const made = comment ? await ask("PUT", `comment/${comment.id}`, body) : await ask("POST", "comment", body);
      state.editing = null;
      await refresh();
      if (comment === null) toggle(id, made.id);
      else { renderComments(id); Object.values(state.marks).forEach(showPoints); say(comment.used > 1 ? `changed for all ${comment.used} who have it` : "changed"); }
    } catch (error) { say(error.message, true); }
  };
  const remove = async () => {
    try { await ask("DELETE", `comment/${comment.id}`); state.editing = null; await refresh(); renderComments(id); } catch (error) { say(error.message, true); }
  };
  const keys = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target === points)) { event.preventDefault(); store(); } else if (event.key === "Escape") { event.stopPropagation(); close(); } };
  return h("div", { className: "edit", onkeydown: keys, onclick: (event) => event.stopPropagation() }, text, h("div", { className: "row" }, h("label", {}, "points ", points),
    h("button", { onclick: store }, "Save"), h("button", { onclick: close }, "Cancel"), comment ? h("button", { onclick: remove }, "Remove") : null,
    comment && comment.used ? h("span", { className: "soft" }, `a change reaches ${comment.used} submission${comment.used === 1 ? "" : "s"}`) : null));
}

function toggle(id, comment) {
  const mark = mine(state.marks[id]);
  mark.comments = mark.comments.includes(comment) ? mark.comments.filter((one) => one !== comment) : [...mark.comments, comment];
  mark.done = true;
  activate(id);
  renderComments(id);
  touched(mark);
}

function finish(mark, done) {
  mine(mark).done = done;
  touched(mark);
}

// While somebody types, what is a number of points is kept; the criterion is finished when they leave the field.
function typePoints(mark, typed) {
  const value = Number(typed.replace(",", "."));
  if (typed.trim() === "" || !Number.isFinite(value) || value < 0 || value > criterionOf(mark.criterion).points) return;
  mine(mark).adjust = cents(value - base(mark));
  touched(mark);
}

function setPoints(mark, typed, before) {
  const value = Number(typed.replace(",", "."));
  const most = criterionOf(mark.criterion).points;
  if (typed.trim() === "" || !Number.isFinite(value)) { refuse(mark, `${typed} is no number of points`, before); return; }
  // A digit too many must not become full marks.
  if (value < 0 || value > most) { refuse(mark, `${typed.trim()} is not between 0 and ${most}: nothing is changed`, before); return; }
  mine(mark).adjust = cents(value - base(mark));
  mark.done = true;
  touched(mark);
}

function refuse(mark, why, before) {
  if (mark.adjust !== before) { mark.adjust = before; touched(mark); }  // what the beginning of the number was worth
  const field = $(`points-${mark.criterion}`);
  showPoints(mark);
  field.value = mark.dirty || mark.revision || (mark.done && !mark.stale) ? worth(mark) : "";
  if (document.activeElement === field) field.select();
  say(why, true);
}

function showPoints(mark) {
  const id = mark.criterion, section = $(`criterion-${id}`);
  if (!section || state.marks[id] !== mark) return;
  const counts = mark.done && !mark.stale;
  section.className = `criterion${state.active === id ? " active" : ""}${counts ? " done" : ""}`;
  if (document.activeElement !== $(`points-${id}`)) $(`points-${id}`).value = counts || mark.dirty || mark.revision ? worth(mark) : "";
  $(`done-${id}`).checked = counts;
  $(`by-${id}`).textContent = mark.stale ? "for an earlier version" : mark.by ? `${mark.by}${Number(mark.adjust) ? `, ${signed(Number(mark.adjust))} by hand` : ""}` : "";
  const all = Object.values(state.marks), done = all.filter((one) => one.done && !one.stale);
  const most = state.cls.criteria.reduce((sum, one) => sum + one.points, 0);
  $("total").textContent = `${cents(done.reduce((sum, one) => sum + worth(one), 0))} of ${most} points, ${done.length} of ${all.length} criteria finished`;
}

function activate(id) {
  if (state.active === id) return;
  state.active = id;
  for (const one of state.cls.criteria) $(`criterion-${one.id}`)?.classList.toggle("active", one.id === id);
}

// --- moving on ---------------------------------------------------------------------------------------------------------

async function step(by) {
  const rows = state.cls.units, at = rows.indexOf(here());
  const next = rows[at + by];
  if (next) await go(next.id); else say(by > 0 ? "this is the last one" : "this is the first one");
}

async function nextUngraded() {
  await settled();
  await refresh();
  const rows = state.cls.units, at = rows.indexOf(here());
  const ahead = [...rows.slice(at + 1), ...rows.slice(0, at + 1)].filter(needs);
  const next = ahead.find((row) => !row.open_by && row !== here()) || ahead.find((row) => row !== here());
  if (next) await open(next.id);
  else say(ahead.length ? "this is the last one that is not finished" : "everything is graded");
}

async function undo() {
  await settled();
  try {
    const back = await ask("POST", `unit/${state.unit.id}/undo`);
    await open(state.unit.id, true);
    say(back ? `taken back: ${criterionOf(back.criterion)?.title || back.criterion}` : "you have changed nothing here that could be taken back");
    refresh();
  } catch (error) { say(error.message, true); }
}

function turn(by) {
  const ids = state.cls.criteria.map((one) => one.id);
  activate(ids[(ids.indexOf(state.active) + by + ids.length) % ids.length]);
  $(`criterion-${state.active}`).scrollIntoView({ block: "nearest" });
}

const tell = () => { if (!document.hidden) ask("POST", `open/${state.unit ? state.unit.id : "none"}`).catch(() => {}); };
const showList = () => { renderList(); $("list").showModal(); $("search").focus(); };

function pressed(event) {
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !state.unit) return;
  const number = Number(event.key);
  const keys = {
    j: () => step(1), k: () => step(-1), n: nextUngraded, c: () => turn(1), C: () => turn(-1), u: undo, l: showList,
    "?": () => $("help").showModal(), p: () => $(`points-${state.active}`).focus(), t: () => $(`text-${state.active}`).focus(),
    a: () => $(`add-${state.active}`).click(), f: () => finish(state.marks[state.active], true), F: () => finish(state.marks[state.active], false),
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  else if (number >= 1 && number <= 9 && commentsOf(state.active)[number - 1]) toggle(state.active, commentsOf(state.active)[number - 1].id);
}

async function begin() {
  await refresh();
  if (!state.cls) { setTimeout(begin, RETRY_AFTER_MS); return; }
  const rows = state.cls.units, wanted = location.hash.slice(1) || kept(key("last"));
  const first = rows.find((row) => row.id === wanted) || rows.find(needs) || rows[0];
  if (first) await open(first.id);
  else $("read").replaceChildren(h("section", {}, h("p", {}, "Nobody has handed in anything that could be read.")));
  setInterval(refresh, POLL_MS);
  setInterval(tell, TELL_MS);
}

document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", () => { if (document.hidden) settled(); else tell(); });
addEventListener("pagehide", () => Object.values(state.marks).forEach((mark) => { if (mark.dirty && !mark.conflict) save(mark, { atOnce: true }); }));
new ResizeObserver(([head]) => document.documentElement.style.setProperty("--head", `${Math.ceil(head.target.offsetHeight + 16)}px`)).observe(document.querySelector("header"));
$("back").onclick = () => step(-1);
$("on").onclick = () => step(1);
$("ungraded").onclick = nextUngraded;
$("undo").onclick = undo;
$("list-button").onclick = showList;
$("help-button").onclick = () => $("help").showModal();
$("only").onchange = () => { keep(key("only"), $("only").value); if ($("only").value) activate($("only").value); renderHead(); $("only").blur(); };
$("search").oninput = renderList;
$("filter").onchange = renderList;
begin();
