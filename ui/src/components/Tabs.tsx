import * as Radix from "@radix-ui/react-tabs";
import type { ReactNode } from "react";

interface Props<T extends string> {
  value: T;
  onChange: (value: T) => void;
  tabs: readonly { value: T; label: string; content: ReactNode }[];
  label: string;
}

export function Tabs<T extends string>({ value, onChange, tabs, label }: Props<T>) {
  return (
    <Radix.Root value={value} onValueChange={(next) => onChange(next as T)}>
      <Radix.List aria-label={label} className="mb-3 flex gap-1 overflow-x-auto border-b border-line">
        {tabs.map((tab) => (
          <Radix.Trigger
            key={tab.value}
            value={tab.value}
            className="border-b-2 border-transparent px-3 py-1.5 text-sm outline-offset-[-2px] font-medium whitespace-nowrap text-muted data-[state=active]:border-accent data-[state=active]:text-accent"
          >
            {tab.label}
          </Radix.Trigger>
        ))}
      </Radix.List>
      {tabs.map((tab) => (
        <Radix.Content key={tab.value} value={tab.value}>
          {tab.content}
        </Radix.Content>
      ))}
    </Radix.Root>
  );
}
