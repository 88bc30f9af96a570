"use strict";

async function start() {
  const form = document.getElementById("sign-in");
  const said = document.getElementById("said");
  const answer = await fetch("/api/session", { credentials: "same-origin" });
  form.hidden = answer.ok;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const reply = await fetch("/api/session", {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key: document.getElementById("key").value }),
    });
    if (reply.ok) {
      location.assign("/api/docs");
    } else {
      said.textContent = (await reply.json()).error.message;
    }
  });
}

start();
