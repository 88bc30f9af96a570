import * as Radix from "@radix-ui/react-dropdown-menu";
import type { ReactNode } from "react";
import { buttonClass } from "./Button.tsx";

interface MenuItem {
  label: string;
  href?: string;
  onSelect?: () => void;
}

/** A button that opens a list of actions. Not modal: a modal menu would insert a style element. */
export function Menu({ label, items, children }: { label: string; items: readonly MenuItem[]; children: ReactNode }) {
  return (
    <Radix.Root modal={false}>
      <Radix.Trigger aria-label={label} className={buttonClass("secondary")}>
        {children}
        <span aria-hidden>▾</span>
      </Radix.Trigger>
      <Radix.Portal>
        <Radix.Content
          align="end"
          sideOffset={4}
          className="z-50 min-w-40 rounded-md border border-line bg-surface p-1 shadow-lg"
        >
          {items.map((item) => (
            <Radix.Item
              key={item.label}
              className="block cursor-pointer rounded px-3 py-1.5 text-sm outline-none data-highlighted:bg-raised"
              {...(item.onSelect ? { onSelect: item.onSelect } : {})}
              asChild={item.href !== undefined}
            >
              {item.href === undefined ? (
                item.label
              ) : (
                <a href={item.href} download>
                  {item.label}
                </a>
              )}
            </Radix.Item>
          ))}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
