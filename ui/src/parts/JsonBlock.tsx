import type { Json } from "../api/types.ts";
import { TextBlock } from "./SafeText.tsx";

export function JsonBlock({ value, label }: { value: Json | object; label: string }) {
  return <TextBlock text={JSON.stringify(value, null, 2)} label={label} />;
}
