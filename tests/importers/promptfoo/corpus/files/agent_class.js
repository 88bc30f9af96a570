class Provider {
  constructor(options) {
    this.options = options;
  }

  id() {
    return this.options.id;
  }

  async callApi(prompt) {
    return { output: `From a class: ${prompt}` };
  }
}

module.exports = Provider;
