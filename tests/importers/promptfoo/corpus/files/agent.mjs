export default async function callApi(prompt, context) {
  return { output: `${prompt} ${Object.keys(context.vars).length}`, tokenUsage: { prompt: 2, completion: 1 } };
}
