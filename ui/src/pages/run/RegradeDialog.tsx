import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/calls.ts";
import type { Evaluation } from "../../api/types.ts";
import { Button } from "../../parts/Button.tsx";
import { Dialog } from "../../parts/Dialog.tsx";
import { Failure, Loading } from "../../parts/Notice.tsx";
import { choicesOf, GraderChooser, useGraders, type ChosenGrader } from "../evaluate/GraderChooser.tsx";
import { useRunGraders } from "../evaluate/useRunGraders.ts";

/** Grades the answers of a run with other graders: a new run, and the agent is not asked. */
export function RegradeDialog({ run, open, onClose }: { run: Evaluation; open: boolean; onClose: () => void }) {
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title="Regrade"
      description="A new run over the same answers; the agent is not called."
      width="max-w-2xl"
    >
      <Regrade run={run} onClose={onClose} />
    </Dialog>
  );
}

function Regrade({ run, onClose }: { run: Evaluation; onClose: () => void }) {
  const { chosen } = useRunGraders(run);
  return chosen === null ? (
    <Loading what="Loading the graders" />
  ) : (
    <Form run={run} initial={chosen} onClose={onClose} />
  );
}

function Form({ run, initial, onClose }: { run: Evaluation; initial: ChosenGrader[]; onClose: () => void }) {
  const [chosen, setChosen] = useState(initial);
  const graders = useGraders();
  const navigate = useNavigate();
  const start = useMutation({
    mutationFn: () => api.regrade(run.id, choicesOf(chosen, graders.data ?? [])),
    onSuccess: async (made) => {
      onClose();
      await navigate(`/runs/${encodeURIComponent(made.id)}`);
    },
  });
  return (
    <div className="flex flex-col gap-4">
      <GraderChooser chosen={chosen} onChange={setChosen} showFaults />
      {start.error && <Failure error={start.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button look="main" disabled={chosen.length === 0 || start.isPending} onClick={() => start.mutate()}>
          Regrade
        </Button>
      </div>
    </div>
  );
}
