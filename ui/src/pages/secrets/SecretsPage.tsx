import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { secretApi } from "../../api/client.ts";
import type { Secret } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { ConfirmDialog, Dialog } from "../../components/Dialog.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { toast } from "../../components/toast.tsx";
import { formatDateTime } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { text, useUrlState } from "../../lib/urlState.ts";
import { SecretForm } from "./SecretForm.tsx";

const QUERY = { queryKey: ["secrets"] };
/** `replace`: the name of the secret to replace; `new`: "on" while the form for a new one is open. */
const STATE = { new: text(), replace: text() };

export function SecretsPage() {
  usePageTitle("Secrets");
  const [state, change] = useUrlState(STATE);
  const [deleting, setDeleting] = useState<Secret | null>(null);
  const queries = useQueryClient();
  const secrets = useQuery({ ...QUERY, queryFn: ({ signal }) => secretApi.all(signal) });
  const remove = useMutation({
    mutationFn: (name: string) => secretApi.remove(name),
    onSuccess: async (_, name) => {
      await queries.invalidateQueries(QUERY);
      toast(`Secret ${name} deleted`);
    },
  });
  const close = () => change({ new: "", replace: "" });
  const replaced = secrets.data?.find((secret) => secret.name === state.replace);
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">Secrets</h1>
        <Button variant="primary" onClick={() => change({ new: "on" })}>
          New secret
        </Button>
      </div>
      {secrets.error && <ErrorNotice error={secrets.error} onRetry={() => void secrets.refetch()} />}
      {remove.error && <ErrorNotice error={remove.error} />}
      {secrets.isPending && <Loading />}
      {secrets.data?.length === 0 && (
        <EmptyState title="No secrets yet">
          A secret is a credential for an agent or a judge. It is stored encrypted, sent only to its hosts, and never
          shown again.
        </EmptyState>
      )}
      {secrets.data && secrets.data.length > 0 && (
        <SecretTable
          secrets={secrets.data}
          onReplace={(secret) => change({ replace: secret.name })}
          onDelete={setDeleting}
        />
      )}
      <Dialog
        open={state.new !== "" || replaced !== undefined}
        onClose={close}
        title={replaced === undefined ? "New secret" : `Replace ${replaced.name}`}
      >
        <SecretForm
          secret={replaced}
          taken={replaced === undefined ? (secrets.data ?? []).map((secret) => secret.name) : []}
          save={secretApi.put}
          onDone={async (name) => {
            await queries.invalidateQueries(QUERY);
            close();
            toast(`Secret ${name} saved`);
          }}
          onCancel={close}
        />
      </Dialog>
      <ConfirmDialog
        open={deleting !== null}
        onClose={() => setDeleting(null)}
        title="Delete this secret?"
        action="Delete"
        onConfirm={() => {
          if (deleting !== null) remove.mutate(deleting.name);
          setDeleting(null);
        }}
      >
        Runs that use <code>{deleting?.name}</code> will fail.
      </ConfirmDialog>
    </div>
  );
}

interface TableProps {
  secrets: readonly Secret[];
  onReplace: (secret: Secret) => void;
  onDelete: (secret: Secret) => void;
}

function SecretTable({ secrets, onReplace, onDelete }: TableProps) {
  return (
    <div className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="p-2">Secret</th>
            <th className="p-2">Sent to</th>
            <th className="hidden p-2 sm:table-cell">Allowed for</th>
            <th className="hidden p-2 md:table-cell">Modified</th>
            <th className="p-2">
              <span className="sr-only">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {secrets.map((secret) => (
            <tr key={secret.name} className="border-b border-line last:border-0">
              <td className="p-2 font-mono break-all">{secret.name}</td>
              <td className="p-2">
                <SafeText text={secret.hosts.join(", ")} className="break-all" />
                <span className="block text-xs text-muted">
                  {secret.scheme}, {secret.place}
                </span>
              </td>
              <td className="hidden p-2 sm:table-cell">{allowedUsers(secret)}</td>
              <td className="hidden p-2 whitespace-nowrap md:table-cell">{formatDateTime(secret.modified_at)}</td>
              <td className="p-2 text-end whitespace-nowrap">
                <Button variant="ghost" onClick={() => onReplace(secret)} aria-label={`Replace ${secret.name}`}>
                  Replace
                </Button>
                <Button variant="ghost" onClick={() => onDelete(secret)} aria-label={`Delete ${secret.name}`}>
                  Delete
                </Button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function allowedUsers(secret: Secret): string {
  return [`scope ${secret.scopes.join(", ")}`, ...secret.keys.map((key) => `key ${key}`)].join("; ");
}
