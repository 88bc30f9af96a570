import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../api/client.ts";
import { Button } from "../components/Button.tsx";
import { Field } from "../components/Field.tsx";
import { ErrorNotice } from "../components/Notice.tsx";

/** Shown instead of the page while the service requires a key; then the requested page follows. */
export function SignIn() {
  const [key, setKey] = useState("");
  const queries = useQueryClient();
  const signIn = useMutation({
    mutationFn: () => api.signIn(key.trim()),
    onSuccess: () => queries.invalidateQueries(),
  });
  return (
    <main className="mx-auto flex min-h-dvh max-w-sm flex-col justify-center p-4">
      <form
        className="card flex flex-col gap-4 p-6"
        onSubmit={(event) => {
          event.preventDefault();
          signIn.mutate();
        }}
      >
        <h1 className="text-xl font-semibold">Sign in to gradeline</h1>
        <Field label="API key" help="Your operator creates one with: gradeline keys create --scope run" required>
          <input
            className="field font-mono"
            type="password"
            autoComplete="current-password"
            value={key}
            onChange={(event) => setKey(event.target.value)}
          />
        </Field>
        {signIn.error && <ErrorNotice error={signIn.error} />}
        <Button variant="primary" type="submit" disabled={key.trim() === "" || signIn.isPending}>
          Sign in
        </Button>
      </form>
    </main>
  );
}
