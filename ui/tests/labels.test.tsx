import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import type { Label, NewLabel } from "../src/features/labels/calls.ts";
import { labelDraftOf, labelOf } from "../src/features/labels/draft.ts";
import { LabelForm } from "../src/features/labels/LabelForm.tsx";

afterEach(cleanup);

test("a verdict needs a choice and a reason; a score is from 0 to 1", () => {
  expect(labelOf({ verdict: "", reason: " ", score: "1.5" })).toEqual({
    label: null,
    faults: {
      verdict: "Choose one",
      reason: "Say why: others read it, and judges are calibrated by it",
      score: "From 0 to 1",
    },
  });
  expect(labelOf({ verdict: "pass", reason: "x".repeat(2001), score: "" }).faults).toEqual({
    reason: "At most 2,000 characters",
  });
  expect(labelOf({ verdict: "pass", reason: "x", score: "much" }).faults).toEqual({ score: "From 0 to 1" });
  expect(labelOf({ verdict: "fail", reason: " because ", score: "0" })).toEqual({
    label: { verdict: "fail", reason: "because", score: 0 },
    faults: null,
  });
  expect(labelOf({ verdict: "pass", reason: "so", score: "" }).label).toEqual({ verdict: "pass", reason: "so" });
});

test("a change begins with what stands", () => {
  const stands = { verdict: "fail", score: null, reason: "no" } as Label;
  expect(labelDraftOf(stands)).toEqual({ verdict: "fail", reason: "no", score: "" });
});

test("nothing is sent until the form is whole", async () => {
  const sent: NewLabel[] = [];
  let done: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => (done = resolve));
  render(
    <QueryClientProvider client={new QueryClient()}>
      <LabelForm label={undefined} save={async (label) => sent.push(label)} onDone={done} onLeave={() => undefined} />
    </QueryClientProvider>,
  );
  fireEvent.click(screen.getByRole("button", { name: "Save verdict" }));
  expect(screen.getByText("Choose one")).toBeTruthy();
  expect(sent).toEqual([]);
  fireEvent.click(screen.getByLabelText("good (pass)"));
  fireEvent.change(screen.getByLabelText("Why (required)"), { target: { value: "it is right" } });
  fireEvent.click(screen.getByRole("button", { name: "Save verdict" }));
  await finished;
  expect(sent).toEqual([{ verdict: "pass", reason: "it is right" }]);
});
