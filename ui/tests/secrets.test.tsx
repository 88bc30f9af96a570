import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import type { Secret, SecretBody } from "../src/api/types.ts";
import { ApiError } from "../src/api/error.ts";
import { secretDraftFrom, SecretForm, validateSecret } from "../src/pages/secrets/SecretForm.tsx";

const TIMEOUT_MS = 30_000;
vi.setConfig({ testTimeout: TIMEOUT_MS });
afterEach(cleanup);

const STORED: Secret = {
  name: "TOKEN",
  host: "a.test",
  hosts: ["a.test", "b.test:8443"],
  scheme: "http",
  place: "query",
  scopes: ["admin", "run"],
  keys: ["0123456789ab"],
  created_at: "2026-01-15T10:00:00.000Z",
  modified_at: "2026-01-15T10:00:00.000Z",
};

test("a secret needs a unique name, a value that can be masked, and a host", () => {
  expect(validateSecret({ ...secretDraftFrom(undefined), name: "a b", value: "short" })).toEqual({
    body: null,
    problems: {
      name: "Use up to 100 letters, digits, _, - and .",
      value: "Enter at least 8 characters: a shorter value cannot be masked",
      hosts: "Enter at least one host",
    },
  });
  const draft = { ...secretDraftFrom(STORED), value: "long enough" };
  expect(validateSecret(draft, ["TOKEN"]).problems).toEqual({
    name: "A secret with this name exists; replace it from the list",
  });
});

test("replacing starts with everything except the value", () => {
  const draft = secretDraftFrom(STORED);
  expect(draft.value).toBe("");
  expect(validateSecret({ ...draft, value: " kept as typed " })).toEqual({
    name: "TOKEN",
    body: {
      value: " kept as typed ",
      hosts: ["a.test", "b.test:8443"],
      scheme: "http",
      place: "query",
      scopes: ["admin", "run"],
      keys: ["0123456789ab"],
    },
    problems: null,
  });
});

function shown(save: (name: string, body: SecretBody) => Promise<unknown>, onDone: (name: string) => void) {
  render(
    <QueryClientProvider client={new QueryClient()}>
      <SecretForm secret={undefined} taken={[]} save={save} onDone={onDone} onCancel={() => undefined} />
    </QueryClientProvider>,
  );
  fireEvent.change(screen.getByLabelText("Name (required)"), { target: { value: "NEW" } });
  fireEvent.change(screen.getByLabelText("Value (required)"), { target: { value: "very-hidden" } });
  fireEvent.change(screen.getByLabelText("Hosts (required)"), { target: { value: "a.test, b.test" } });
  fireEvent.click(screen.getByRole("button", { name: "Save" }));
}

test("the form sends the typed values, and its value field is a password", async () => {
  const sent: [string, SecretBody][] = [];
  const stored = await new Promise<string>((resolve) => shown(async (name, body) => sent.push([name, body]), resolve));
  expect(stored).toBe("NEW");
  expect(sent).toEqual([
    [
      "NEW",
      {
        value: "very-hidden",
        hosts: ["a.test", "b.test"],
        scheme: "https",
        place: "header",
        scopes: ["admin"],
        keys: [],
      },
    ],
  ]);
  expect(screen.getByLabelText<HTMLInputElement>("Value (required)").type).toBe("password");
});

test("an error from the service is shown", async () => {
  const refusal = new ApiError("INVALID_INPUT", "Field 'hosts[0]': write host or host:port", 400);
  shown(
    () => Promise.reject(refusal),
    () => undefined,
  );
  const alert = await screen.findByRole("alert", {}, { timeout: TIMEOUT_MS });
  expect(alert.textContent).toContain("write host or host:port");
});
