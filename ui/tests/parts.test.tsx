import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { useState } from "react";
import { afterEach, expect, test } from "vitest";
import type { JsonObject } from "../src/api/types.ts";
import { fieldsOf } from "../src/lib/schemaForm.ts";
import { DiffText } from "../src/parts/DiffText.tsx";
import { CheckField } from "../src/parts/Field.tsx";
import { Histogram } from "../src/parts/Histogram.tsx";
import { Warnings } from "../src/parts/Notice.tsx";
import { SafeText } from "../src/parts/SafeText.tsx";
import { SchemaForm } from "../src/parts/SchemaForm.tsx";

afterEach(cleanup);

const HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script> [x](javascript:alert(3)) \u202eevil';

test("hostile text makes no element but the names of what cannot be seen", () => {
  const { container } = render(<SafeText text={HOSTILE} />);
  expect([...container.querySelectorAll("*")].map((element) => element.tagName)).toEqual(["BDI", "SPAN"]);
  expect(container.textContent).toBe(HOSTILE.replace("\u202e", "RLO"));
});

test("a difference of hostile texts is text as well", () => {
  const { container } = render(<DiffText before="plain words here" after={HOSTILE} label="diff" />);
  expect(container.querySelector("img, script, a")).toBeNull();
});

test("a checkbox is described by its help and by what is wrong with it", () => {
  render(<CheckField label="Stop early" help="With a baseline." fault={HOSTILE} checked={false} onChange={() => {}} />);
  const box = screen.getByRole("checkbox", { name: "Stop early" });
  const described = (box.getAttribute("aria-describedby") ?? "").split(" ").map((id) => document.getElementById(id));
  expect(described.map((note) => note?.textContent)).toEqual(["With a baseline.", HOSTILE.replace("\u202e", "RLO")]);
  expect(box.getAttribute("aria-invalid")).toBe("true");
});

test("warnings are a region of text, and absent where there are none", () => {
  const { container, rerender } = render(<Warnings warnings={[HOSTILE]} />);
  expect(screen.getByRole("region", { name: "Warnings" }).textContent).toContain("<script>");
  expect(container.querySelector("img, script, a")).toBeNull();
  rerender(<Warnings warnings={[]} />);
  expect(container.innerHTML).toBe("");
});

test("a form of a schema gives the values that were set", () => {
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
        fields={fieldsOf(schema)}
        values={values}
        onChange={setValues}
        faults={{ limit: "must be at most 1" }}
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

test("a column is chosen and let go, by mouse and by keyboard", () => {
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
