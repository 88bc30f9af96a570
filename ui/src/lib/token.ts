/** A random text that names one request. (`crypto.randomUUID` is not there on plain HTTP.) */
export function randomToken(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
