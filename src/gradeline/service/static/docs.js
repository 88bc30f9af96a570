"use strict";

// Everything is put into the page as text, never as markup.
const METHODS = ["get", "post", "put", "patch", "delete"];

function element(name, text, style) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  return made;
}

function resolve(schema, spec, seen = []) {
  if (Array.isArray(schema)) return schema.map((part) => resolve(part, spec, seen));
  if (schema === null || typeof schema !== "object") return schema;
  const ref = schema.$ref;
  if (typeof ref === "string" && ref.startsWith("#/")) {
    if (seen.includes(ref)) return { $ref: ref };
    const target = ref.slice(2).split("/").reduce((place, name) => (place ? place[name] : undefined), spec);
    return target === undefined ? schema : resolve(target, spec, [...seen, ref]);
  }
  const whole = {};
  for (const [name, value] of Object.entries(schema)) whole[name] = resolve(value, spec, seen);
  return whole;
}

function json(title, value) {
  const box = document.createDocumentFragment();
  box.append(element("h3", title), element("pre", JSON.stringify(value, null, 2)));
  return box;
}

function bounds(schema) {
  const { description, title, examples, ...rest } = schema || {};
  return Object.keys(rest).length ? JSON.stringify(rest) : "";
}

function parameters(list) {
  const table = element("table");
  const head = element("tr");
  for (const name of ["parameter", "in", "what it is", "bounds"]) head.append(element("th", name));
  table.append(head);
  for (const one of list) {
    const row = element("tr");
    const name = element("td");
    name.append(element("code", one.name + (one.required ? " (required)" : "")));
    const limits = element("td");
    limits.append(element("code", bounds(one.schema)));
    row.append(name, element("td", one.in), element("td", one.description || ""), limits);
    table.append(row);
  }
  return table;
}

function contents(title, content, spec, box) {
  for (const [type, body] of Object.entries(content || {})) {
    if (body.example !== undefined) box.append(json(`${title}, example (${type})`, body.example));
    if (body.schema !== undefined) box.append(json(`${title}, schema (${type})`, resolve(body.schema, spec)));
  }
}

function body(operation, spec) {
  const box = element("div");
  for (const paragraph of (operation.description || "").split("\n\n")) box.append(element("p", paragraph));
  if (operation.parameters && operation.parameters.length) {
    box.append(parameters(operation.parameters.map((one) => resolve(one, spec))));
  }
  if (operation.requestBody) contents("Body", operation.requestBody.content, spec, box);
  for (const [status, response] of Object.entries(operation.responses || {})) {
    box.append(element("h3", `${status}: ${response.description || ""}`));
    if (status.startsWith("2")) contents("Answer", response.content, spec, box);
  }
  return box;
}

function operationBox(method, path, operation, spec) {
  const box = element("details");
  const summary = element("summary");
  summary.append(element("span", method.toUpperCase(), "method"), element("code", path, "path"));
  summary.append(element("span", operation.summary || "", "quiet"));
  box.append(summary);
  box.dataset.words = `${method} ${path} ${operation.summary || ""} ${operation.description || ""}`.toLowerCase();
  box.addEventListener("toggle", () => {
    if (box.open && box.childElementCount === 1) box.append(body(operation, spec));
  });
  return box;
}

function show(spec, place) {
  const groups = new Map();
  for (const [path, operations] of Object.entries(spec.paths)) {
    for (const method of METHODS) {
      const operation = operations[method];
      if (!operation) continue;
      const tag = (operation.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operationBox(method, path, operation, spec));
    }
  }
  place.replaceChildren(element("p", spec.info.description || ""));
  for (const [tag, boxes] of groups) {
    const section = element("section");
    section.append(element("h2", tag), ...boxes);
    place.append(section);
  }
}

function filter(place, wanted) {
  const words = wanted.toLowerCase().split(/\s+/);
  for (const section of place.querySelectorAll("section")) {
    let any = false;
    for (const box of section.querySelectorAll("details")) {
      box.hidden = !words.every((word) => box.dataset.words.includes(word));
      any = any || !box.hidden;
    }
    section.hidden = !any;
  }
}

async function start() {
  const place = document.getElementById("operations");
  try {
    const answer = await fetch("/api/openapi.json", { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the description cannot be read: ${answer.status}`);
    show(await answer.json(), place);
  } catch (error) {
    place.replaceChildren(element("p", String(error.message || error)));
    return;
  }
  document.getElementById("find").addEventListener("input", (event) => filter(place, event.target.value));
}

start();
