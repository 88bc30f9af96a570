// The agent of the benchmarks, as promptfoo calls it.
export default class Agent {
  id() {
    return "agent";
  }

  async callApi(prompt) {
    return { output: String(2 * Number.parseInt(prompt.split(" ")[2], 10)) };
  }
}
