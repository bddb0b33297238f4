// The code of a submission, and comments on its lines. Everything is set as text: what a part of a line is, is a class.
"use strict";

async function renderCode(id) {
  let code;
  try {
    code = await ask("GET", `unit/${id}/code`);
  } catch (error) {
    say(error.message, true);
    return;
  }
  const place = $("code");
  if (!place || !state.unit || state.unit.id !== id) return; // somebody has gone on meanwhile
  const lost = code.comments.filter((one) => one.line === null);
  const parts = [h("h2", {}, "Code"), h("p", { className: "soft" }, "Click on a line's number to comment on it. Comments stay with the line's text when somebody hands in again, and give no points.")];
  if (lost.length) {
    parts.push(h("div", { className: "notice" }, h("p", {}, "Said about lines that are gone:"),
      lost.map((one) => h("div", {}, h("code", {}, `${one.file}: ${one.code.trim()}`), saidOf(id, one)))));
  }
  for (const file of code.files) {
    const of = code.comments.filter((one) => one.file === file.name && one.line !== null);
    const details = h("details", { open: Boolean(of.length) }, h("summary", {}, `${file.name} (${file.lines.length} lines${of.length ? `, ${of.length} comment${of.length === 1 ? "" : "s"}` : ""})`));
    // Lines are made when somebody looks: a submission may have many files.
    const fill = () => { if (details.open && !details.querySelector("ol")) details.append(linesOf(id, code, file, of)); };
    details.addEventListener("toggle", fill);
    parts.push(details);
    fill();
  }
  if (code.left_out.length) parts.push(h("p", { className: "notice" }, `Not shown here: ${code.left_out.join("; ")}.`));
  if (!code.files.length) parts.push(h("p", {}, "There is no code in this submission."));
  place.replaceChildren(...parts);
}

function linesOf(id, code, file, comments) {
  return h("ol", { className: "lines", tabIndex: 0, "aria-label": file.name }, file.lines.map((parts, index) => {
    const line = index + 1;
    const row = h("li", {},
      h("button", { className: "number", title: "Comment on this line", onclick: () => writeAbout(id, code, file.name, line, row) }, String(line)),
      h("code", {}, parts.map(([kind, text]) => (kind ? h("span", { className: `is-${kind}` }, text) : text))));
    for (const one of comments) if (one.line === line) row.append(saidOf(id, one));
    return row;
  }));
}

function saidOf(id, one) {
  const mine = one.by === state.cls.me;
  const box = h("div", { className: "said" }, h("p", {}, one.text), h("p", { className: "soft" }, one.by,
    mine ? h("button", { onclick: () => box.replaceChildren(form(one.text, (text) => send("PUT", `unit/${id}/line/${one.id}`, { text }, id))) }, "Change") : null,
    mine ? h("button", { onclick: () => send("PUT", `unit/${id}/line/${one.id}`, { text: "" }, id) }, "Remove") : null));
  return box;
}

function writeAbout(id, code, file, line, row) {
  if (row.querySelector("textarea")) return;
  const box = h("div", { className: "said" }, form("", (text) => send("POST", `unit/${id}/line`, { content: code.content, file, line, text }, id), () => box.remove()));
  row.append(box);
  box.querySelector("textarea").focus();
}

function form(text, submit, cancel) {
  const area = h("textarea", { value: text, "aria-label": "Comment on this line" });
  return h("div", {}, area, h("button", { onclick: () => { if (area.value.trim()) submit(area.value); } }, "Save"),
    h("button", { onclick: cancel || (() => renderCode(state.unit.id)) }, "Cancel"));
}

async function send(method, path, body, id) {
  try {
    await ask(method, path, body);
    say("the comment is saved; students get it with their feedback");
    await renderCode(id);
  } catch (error) { say(`not saved: ${error.message}`, true); }
}
