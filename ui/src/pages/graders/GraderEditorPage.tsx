import { useQuery } from "@tanstack/react-query";
import { useParams } from "react-router";
import { api } from "../../api/calls.ts";
import { useTitle } from "../../app/useTitle.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { LinkButton } from "../../parts/Button.tsx";
import { Empty, Failure, Loading } from "../../parts/Notice.tsx";
import { graderCalls } from "./calls.ts";
import { copyOf, draftOf, EMPTY_DRAFT } from "./draft.ts";
import { GraderEditor } from "./GraderEditor.tsx";
import { kindsOf } from "./kinds.ts";
import { EDITOR_STATE } from "./state.ts";

/** A new grader, or a new version of one. */
export function GraderEditorPage() {
  const { id } = useParams();
  const [state, change] = useUrlState(EDITOR_STATE);
  useTitle(id === undefined ? "New grader" : "Edit grader");
  const source = id ?? state.copy;
  const graders = useQuery({ queryKey: ["graders"], queryFn: ({ signal }) => graderCalls.all(signal) });
  const begun = useQuery({
    queryKey: ["grader", source],
    queryFn: ({ signal }) => api.grader(source, signal),
    enabled: source !== "",
    staleTime: 0,
  });
  const error = graders.error ?? begun.error;
  if (error) return <Failure error={error} onRetry={() => void Promise.all([graders.refetch(), begun.refetch()])} />;
  if (graders.data === undefined || (source !== "" && begun.data === undefined)) return <Loading />;
  if (id !== undefined && begun.data?.source !== "stored") {
    return (
      <Empty
        title="This grader cannot be changed"
        actions={
          <LinkButton look="main" to={`/graders/new?copy=${encodeURIComponent(id)}`}>
            Make your own of it
          </LinkButton>
        }
      >
        It comes with the program or the operator's folder.
      </Empty>
    );
  }
  const kinds = kindsOf(graders.data);
  const first =
    begun.data === undefined
      ? { ...EMPTY_DRAFT, type: state.type || EMPTY_DRAFT.type }
      : id === undefined
        ? copyOf(begun.data)
        : draftOf(begun.data);
  return (
    <GraderEditor
      key={`${id} ${state.copy}`}
      before={id === undefined ? null : (begun.data ?? null)}
      first={first}
      kinds={kinds}
      preview={state}
      onPreview={change}
    />
  );
}
