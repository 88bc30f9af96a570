/** The places of the interface, in the order of its navigation. */
export interface Place {
  path: string;
  title: string;
  /** For the command palette. */
  words: string;
  /** Only shown to who is signed in with a key of scope `admin`. */
  admin?: true;
}

const PLACES: readonly Place[] = [
  { path: "/runs", title: "Runs", words: "evaluations results history" },
  { path: "/compare", title: "Compare", words: "baseline candidate difference better worse" },
  { path: "/cases", title: "Test cases", words: "dataset import export questions" },
  { path: "/new", title: "New evaluation", words: "start run agent suite" },
  { path: "/graders", title: "Graders", words: "judges rules rubric preview versions" },
  { path: "/secrets", title: "Secrets", words: "credentials tokens keys agents judges", admin: true },
];

/** The places that a caller of this scope has; null: it is not known yet. */
export function placesOf(scope: string | null): readonly Place[] {
  return PLACES.filter((place) => !place.admin || scope === "admin");
}
