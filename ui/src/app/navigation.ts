/** The pages in the main navigation, in order. */
interface NavItem {
  path: string;
  title: string;
  /** For the command palette. */
  keywords: string;
  /** Shown only with a key of scope `admin`. */
  admin?: true;
}

const NAV_ITEMS: readonly NavItem[] = [
  { path: "/runs", title: "Runs", keywords: "evaluations results history" },
  { path: "/compare", title: "Compare", keywords: "baseline candidate difference better worse" },
  { path: "/cases", title: "Test cases", keywords: "dataset import export questions" },
  { path: "/new", title: "New evaluation", keywords: "start run agent suite" },
  { path: "/graders", title: "Graders", keywords: "judges rules rubric preview versions" },
  { path: "/secrets", title: "Secrets", keywords: "credentials tokens keys agents judges", admin: true },
];

/** The pages for a key of this scope; null: not known yet. */
export function navItemsFor(scope: string | null): readonly NavItem[] {
  return NAV_ITEMS.filter((item) => !item.admin || scope === "admin");
}
