import { useQuery } from "@tanstack/react-query";
import { Suspense, useEffect, useRef, useState } from "react";
import { NavLink, Outlet, useLocation } from "react-router";
import { api } from "../api/client.ts";
import { useSession } from "../api/session.ts";
import { Button } from "../components/Button.tsx";
import { Loading } from "../components/Notice.tsx";
import { Toasts } from "../components/toast.tsx";
import { navItemsFor } from "./navigation.ts";
import { CommandPalette } from "./Palette.tsx";
import { ShortcutHelp, useShortcuts } from "./shortcuts.tsx";
import { SignIn } from "./SignIn.tsx";
import { chooseTheme, nextTheme, useTheme } from "./theme.ts";

/** The frame around every page. */
export function Shell() {
  const [shown, setShown] = useState<"palette" | "keys" | null>(null);
  const main = useRef<HTMLElement>(null);
  const { signedOut } = useSession();
  // nothing waits for this: any other call reports a missing session too
  useQuery({ queryKey: ["session"], queryFn: ({ signal }) => api.session(signal), refetchOnWindowFocus: true });
  useShortcuts({ "mod+k": () => setShown("palette"), "?": () => setShown("keys"), "/": focusSearch });
  useFocusOnNewPage(main);
  if (signedOut) return <SignIn />;
  return (
    <div className="flex min-h-dvh flex-col">
      <a
        href="#main"
        className="sr-only z-50 rounded-md bg-accent px-3 py-2 text-accent-ink focus:not-sr-only focus:fixed focus:top-2 focus:left-2"
        onClick={(event) => {
          // the part of the URL after # is the router's
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <Header onPalette={() => setShown("palette")} onKeys={() => setShown("keys")} />
      <main id="main" ref={main} tabIndex={-1} className="mx-auto w-full max-w-[1500px] flex-1 p-3 outline-none sm:p-5">
        <Suspense fallback={<Loading />}>
          <Outlet />
        </Suspense>
      </main>
      <CommandPalette open={shown === "palette"} onClose={() => setShown(null)} />
      <ShortcutHelp open={shown === "keys"} onClose={() => setShown(null)} />
      <Toasts />
    </div>
  );
}

function Header({ onPalette, onKeys }: { onPalette: () => void; onKeys: () => void }) {
  const theme = useTheme();
  const { current } = useSession();
  const signedIn = current !== null && !current.local && current.csrf_token !== null;
  return (
    <header className="sticky top-0 z-20 border-b border-line bg-surface">
      <div className="mx-auto flex max-w-[1500px] flex-wrap items-center gap-x-4 gap-y-1 px-3 py-1.5 sm:px-5">
        <NavLink to="/runs" className="text-base font-bold tracking-tight text-accent">
          gradeline
        </NavLink>
        <nav
          aria-label="Main"
          className="order-last flex w-full gap-0.5 overflow-x-auto sm:gap-1 sm:order-none sm:w-auto"
        >
          {navItemsFor(current?.scope ?? null).map((item) => (
            <NavLink
              key={item.path}
              to={item.path}
              className={({ isActive }) =>
                `rounded-md px-1 py-1.5 text-sm sm:px-2.5 font-medium whitespace-nowrap ${isActive ? "bg-accent-soft text-accent" : "text-muted hover:bg-raised"}`
              }
            >
              {item.title}
            </NavLink>
          ))}
        </nav>
        <div className="ml-auto flex items-center gap-1">
          <Button
            variant="ghost"
            onClick={onPalette}
            aria-label="⌘K: search pages and runs"
            title="Search pages and runs (⌘K)"
          >
            ⌘K
          </Button>
          <Button
            variant="ghost"
            onClick={() => chooseTheme(nextTheme(theme))}
            aria-label={`Theme: ${theme}`}
            title={`Theme: ${theme} (click to change)`}
          >
            {theme === "system" ? "◐" : theme === "light" ? "☀" : "☾"}
          </Button>
          <Button variant="ghost" onClick={onKeys} aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)">
            ?
          </Button>
          {signedIn && (
            <Button variant="ghost" onClick={() => void api.signOut().catch(() => undefined)}>
              Sign out
            </Button>
          )}
        </div>
      </div>
    </header>
  );
}

function focusSearch(): void {
  document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
}

/** Moves the focus to the top of a new page, for screen readers and keyboards; not when only its query changes. */
function useFocusOnNewPage(main: React.RefObject<HTMLElement | null>): void {
  const { pathname } = useLocation();
  const last = useRef(pathname);
  useEffect(() => {
    if (last.current === pathname) return;
    last.current = pathname;
    main.current?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [pathname, main]);
}
