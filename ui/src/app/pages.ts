/** The places of the interface, in the order of its navigation. */
export interface Place {
  path: string;
  title: string;
  /** For the command palette. */
  words: string;
}

export const PLACES: readonly Place[] = [
  { path: "/runs", title: "Runs", words: "evaluations results history" },
  { path: "/compare", title: "Compare", words: "baseline candidate difference better worse" },
  { path: "/cases", title: "Test cases", words: "dataset import export questions" },
  { path: "/new", title: "New evaluation", words: "start run agent suite" },
  { path: "/graders", title: "Graders", words: "judges rules rubric preview versions" },
];
