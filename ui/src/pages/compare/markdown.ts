import type { Comparison } from "../../api/types.ts";
import { score } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { changeBy, shownCases } from "./changes.ts";
import { DECISIONS, notes, sentenceOf, signedInterval } from "./wording.ts";

const MOST_CASES = 20;

/** The comparison for a pull request. Names are foreign text: nothing in them is markup there either. */
export function asMarkdown(
  comparison: Comparison,
  names: { baseline: string; candidate: string },
  link: string,
): string {
  const rows = Object.entries(comparison.graders).map(([grader, told]) =>
    [
      asCode(grader, true),
      score(told.baseline),
      score(told.candidate),
      signedInterval(told),
      [`**${DECISIONS[told.decision].told}**`, notes(told)].filter(Boolean).join(". "),
      `${told.improved} / ${told.worse} / ${told.same} / ${told.missing}`,
    ].join(" | "),
  );
  const { comparable, reasons } = comparison.comparability;
  const { warnings } = comparison;
  const worse = shownCases(comparison.cases, "", "").filter((one) => ["worse", "mixed"].includes(changeBy(one, "")));
  return [
    `### ${asCode(names.candidate)} against ${asCode(names.baseline)}`,
    comparable ? "" : "**The runs are not alike; the numbers were forced.**",
    rows.length > 0 ? sentenceOf(comparison) : "Nothing was compared.",
    rows.length > 0
      ? [
          "| grader | baseline | candidate | difference (95 % interval) | decision | improved / worse / same / missing |",
          "|---|---|---|---|---|---|",
          ...rows.map((row) => `| ${row} |`),
        ].join("\n")
      : "",
    warnings.length > 0 ? `Warnings:\n${warnings.map((warning) => `- ${asCode(warning)}`).join("\n")}` : "",
    reasons.length > 0 ? `What else differs:\n${reasons.map((reason) => `- ${asCode(reason)}`).join("\n")}` : "",
    worse.length > 0 ? `Worse or mixed: ${listed(worse.map((one) => one.test_case_id))}` : "",
    `<${link}>`,
  ]
    .filter(Boolean)
    .join("\n\n")
    .concat("\n");
}

function listed(cases: readonly string[]): string {
  const more = cases.length > MOST_CASES ? ` and ${cases.length - MOST_CASES} more` : "";
  return (
    cases
      .slice(0, MOST_CASES)
      .map((one) => asCode(one))
      .join(", ") + more
  );
}

/** Foreign text on one line, as code: there nothing is markup, a link or the name of a person to tell. */
export function asCode(text: string, inTable = false): string {
  const line = visibleText(text).replace(/\s+/g, " ").trim() || "–";
  const longest = Math.max(0, ...(line.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const inner = line.startsWith("`") || line.endsWith("`") ? ` ${line} ` : line;
  return `${fence}${inTable ? inner.replaceAll("|", "\\|") : inner}${fence}`;
}
