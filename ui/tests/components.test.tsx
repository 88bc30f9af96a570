import { afterEach, expect, test } from "vitest";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { useState } from "react";
import type { JsonObject } from "../src/api/types.ts";
import { DiffText } from "../src/components/DiffText.tsx";
import { CheckboxField } from "../src/components/Field.tsx";
import { Warnings } from "../src/components/Notice.tsx";
import { SafeText } from "../src/components/SafeText.tsx";
import { SchemaForm } from "../src/components/SchemaForm.tsx";
import { fieldsFromSchema } from "../src/lib/jsonSchema.ts";
import { Histogram } from "../src/pages/run/Distributions.tsx";
import { wordDiff } from "../src/components/DiffText.tsx";

afterEach(cleanup);

const HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script> [x](javascript:alert(3)) \u202eevil';

test("hostile text creates no elements except the names of invisible characters", () => {
  const { container } = render(<SafeText text={HOSTILE} />);
  expect([...container.querySelectorAll("*")].map((element) => element.tagName)).toEqual(["BDI", "SPAN"]);
  expect(container.textContent).toBe(HOSTILE.replace("\u202e", "RLO"));
});

test("a diff of hostile text is text too", () => {
  const { container } = render(<DiffText before="plain words here" after={HOSTILE} label="diff" />);
  expect(container.querySelector("img, script, a")).toBeNull();
});

test("a checkbox is described by its help and its problem", () => {
  render(
    <CheckboxField label="Stop early" help="With a baseline." problem={HOSTILE} checked={false} onChange={() => {}} />,
  );
  const box = screen.getByRole("checkbox", { name: "Stop early" });
  const described = (box.getAttribute("aria-describedby") ?? "").split(" ").map((id) => document.getElementById(id));
  expect(described.map((note) => note?.textContent)).toEqual(["With a baseline.", HOSTILE.replace("\u202e", "RLO")]);
  expect(box.getAttribute("aria-invalid")).toBe("true");
});

test("warnings are a region of text, absent if there are none", () => {
  const { container, rerender } = render(<Warnings warnings={[HOSTILE]} />);
  expect(screen.getByRole("region", { name: "Warnings" }).textContent).toContain("<script>");
  expect(container.querySelector("img, script, a")).toBeNull();
  rerender(<Warnings warnings={[]} />);
  expect(container.innerHTML).toBe("");
});

test("a schema form reports the values that were set", () => {
  const schema = {
    type: "object",
    properties: {
      strict: { type: "boolean", default: false },
      limit: { type: "number" },
      words: { type: "array", items: { type: "string" } },
    },
  };
  let latest: JsonObject = {};
  function Form() {
    const [values, setValues] = useState<JsonObject>({});
    latest = values;
    return (
      <SchemaForm
        fields={fieldsFromSchema(schema)}
        values={values}
        onChange={setValues}
        problems={{ limit: "must be at most 1" }}
      />
    );
  }
  render(<Form />);
  fireEvent.click(screen.getByLabelText("Strict"));
  fireEvent.change(screen.getByLabelText("Limit"), { target: { value: "2" } });
  fireEvent.change(screen.getByLabelText("Words"), { target: { value: "a\n\nb\n" } });
  expect(latest).toEqual({ strict: true, limit: 2, words: ["a", "b"] });
  expect(screen.getByLabelText("Limit").getAttribute("aria-invalid")).toBe("true");
  fireEvent.change(screen.getByLabelText("Limit"), { target: { value: "" } });
  expect(latest).toEqual({ strict: true, words: ["a", "b"] });
});

test("a column is selected and cleared, by mouse and by keyboard", () => {
  const chosen: unknown[] = [];
  const bins = [
    { low: 0, high: 0.5, count: 3 },
    { low: 0.5, high: 1, count: 1 },
  ];
  const { rerender } = render(
    <Histogram bins={bins} label="score" unit={String} chosen={null} onChoose={(range) => chosen.push(range)} />,
  );
  fireEvent.click(screen.getByRole("button", { name: "0 to 0.5: 3 results" }));
  rerender(
    <Histogram
      bins={bins}
      label="score"
      unit={String}
      chosen={{ low: 0, high: 0.5 }}
      onChoose={(range) => chosen.push(range)}
    />,
  );
  const column = screen.getByRole("button", { name: "0 to 0.5: 3 results" });
  expect(column.getAttribute("aria-pressed")).toBe("true");
  fireEvent.keyDown(column, { key: "Enter" });
  expect(chosen).toEqual([{ low: 0, high: 0.5 }, null]);
});

test("texts are compared word by word", () => {
  expect(wordDiff("the capital is Paris", "the capital is Lyon today")).toEqual({
    tooLong: false,
    parts: [
      { kind: "same", text: "the capital is " },
      { kind: "removed", text: "Paris" },
      { kind: "added", text: "Lyon today" },
    ],
  });
});

test("a single short word is compared by character", () => {
  expect(wordDiff("42", "43").parts).toEqual([
    { kind: "same", text: "4" },
    { kind: "removed", text: "2" },
    { kind: "added", text: "3" },
  ]);
});

test("equal texts have no change, and an empty one is all added", () => {
  expect(wordDiff("same text here", "same text here").parts).toEqual([{ kind: "same", text: "same text here" }]);
  expect(wordDiff("", "new text").parts).toEqual([{ kind: "added", text: "new text" }]);
});

test("same and removed parts are the old text, same and added parts the new one", () => {
  const before = "one  two\nthree four\t five";
  const after = "zero one two\nthree  five six";
  const { parts: parts } = wordDiff(before, after);
  const without = (kind: string) =>
    parts
      .filter((change) => change.kind !== kind)
      .map((change) => change.text)
      .join("");
  expect(without("added")).toBe(before);
  expect(without("removed")).toBe(after);
});

test("a diff of very different texts stops early", () => {
  const words = (sign: string) => Array.from({ length: 6_000 }, (_, index) => `${sign}${index}`).join(" ");
  const { tooLong: tooLong, parts: parts } = wordDiff(words("a"), words("b"));
  expect(tooLong).toBe(true);
  expect(parts.map((change) => change.kind)).toEqual(["removed", "added"]);
});
