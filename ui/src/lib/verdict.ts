import type { Evaluation, RunStatus, Summary } from "../api/types.ts";
import { counted, percent, rate } from "./format.ts";

export interface Verdict {
  tone: "good" | "bad" | "open" | "none";
  sentence: string;
}

const SO_FAR: Partial<Record<RunStatus, string>> = {
  running: "So far: ",
  cancelled: "Cancelled. What there is: ",
  interrupted: "Interrupted. What there is: ",
};

/** A run in one sentence: the grader that says worst, how sure that is, and how much of the run it speaks of. */
export function verdictOf(run: Evaluation, summary: Summary): Verdict {
  if (run.status === "pending") return { tone: "open", sentence: "Waiting for its turn." };
  if (run.status === "failed") {
    return { tone: "bad", sentence: `The run failed${run.error_message ? `: ${run.error_message}` : "."}` };
  }
  if (run.verdict) return gateOf(run.verdict);
  const graders = Object.entries(summary.pass_rates).filter(([, figure]) => figure.value !== null);
  const going = SO_FAR[run.status] ?? "";
  if (graders.length === 0) {
    return going === "" && summary.total_results > 0
      ? { tone: "none", sentence: "Nothing could be graded: no answer has a score." }
      : { tone: "open", sentence: `${going}no scores yet.` };
  }
  const [name, worst] = graders.reduce((low, one) => ((one[1].value ?? 1) < (low[1].value ?? 1) ? one : low));
  const of = graders.length === 1 ? `${name} passes` : `lowest of ${graders.length} graders is ${name}: it passes`;
  const sentence = `${going}${of} ${rate(worst)} of ${counted(worst.scored, "scored answer")}${covered(worst)}.`;
  const tone = going !== "" ? "open" : worst.value === 1 ? "good" : "none";
  return { tone, sentence: sentence.charAt(0).toUpperCase() + sentence.slice(1) };
}

/** What the suite's gate says of a finished run. */
function gateOf({ result, reasons }: NonNullable<Evaluation["verdict"]>): Verdict {
  const [tone, said] = GATES[result] ?? (["none", `The gate says ${result}`] as const);
  return { tone, sentence: `${said}${reasons.length > 0 ? `: ${reasons.join("; ")}` : ""}.` };
}

const GATES: Record<string, readonly [Verdict["tone"], string] | undefined> = {
  pass: ["good", "Passes its gate"],
  fail: ["bad", "Fails its gate"],
  undecided: ["open", "Undecided"],
};

function covered({ scored, total }: { scored: number; total: number }): string {
  return total > scored ? `; ${percent(scored / total)} of ${counted(total, "result")} have a score` : "";
}
