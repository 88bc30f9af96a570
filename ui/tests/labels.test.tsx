import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import type { Label, NewLabel } from "../src/api/types.ts";
import { labelDraftFrom, LabelForm, validateLabel } from "../src/pages/run/LabelPanel.tsx";

afterEach(cleanup);

test("a label needs a verdict and a reason; a score is from 0 to 1", () => {
  expect(validateLabel({ verdict: "", reason: " ", score: "1.5" })).toEqual({
    label: null,
    problems: {
      verdict: "Choose pass or fail",
      reason: "Enter a reason: others read it, and judges are calibrated with it",
      score: "Enter a number from 0 to 1",
    },
  });
  expect(validateLabel({ verdict: "pass", reason: "x".repeat(2001), score: "" }).problems).toEqual({
    reason: "At most 2,000 characters",
  });
  expect(validateLabel({ verdict: "pass", reason: "x", score: "high" }).problems).toEqual({
    score: "Enter a number from 0 to 1",
  });
  expect(validateLabel({ verdict: "fail", reason: " because ", score: "0" })).toEqual({
    label: { verdict: "fail", reason: "because", score: 0 },
    problems: null,
  });
  expect(validateLabel({ verdict: "pass", reason: "so", score: "" }).label).toEqual({ verdict: "pass", reason: "so" });
});

test("editing starts with the current label", () => {
  const current = { verdict: "fail", score: null, reason: "no" } as Label;
  expect(labelDraftFrom(current)).toEqual({ verdict: "fail", reason: "no", score: "" });
});

test("nothing is sent until the form is complete", async () => {
  const sent: NewLabel[] = [];
  let done: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => (done = resolve));
  render(
    <QueryClientProvider client={new QueryClient()}>
      <LabelForm label={undefined} save={async (label) => sent.push(label)} onDone={done} onCancel={() => undefined} />
    </QueryClientProvider>,
  );
  fireEvent.click(screen.getByRole("button", { name: "Save label" }));
  expect(screen.getByText("Choose pass or fail")).toBeTruthy();
  expect(sent).toEqual([]);
  fireEvent.click(screen.getByLabelText("Pass"));
  fireEvent.change(screen.getByLabelText("Reason (required)"), { target: { value: "it is right" } });
  fireEvent.click(screen.getByRole("button", { name: "Save label" }));
  await finished;
  expect(sent).toEqual([{ verdict: "pass", reason: "it is right" }]);
});
